"""How windows become micro-batches, and who gets which."""

import numpy as np
import pytest
import torch

from curriculum.data.windows import Window
from curriculum.engine.batch import collate, rank_share
from curriculum.engine.evaluate import chunk_by_tokens


def window(lengths: list[int], weights: list[float], first: int) -> Window:
    count = sum(lengths)
    return Window(
        input_ids=np.arange(first, first + count, dtype=np.int32),
        seq_lens=np.array(lengths, np.int32),
        loss_weights=np.array(weights, np.float32),
        document_ids=np.zeros(0, np.int64),
        record_ids=np.zeros(len(lengths), np.int64),
    )


def test_rows_labels_and_positions() -> None:
    windows = [window([3, 2], [0, 1, 0, 0.5, 0], 10), window([2], [1, 0], 50)]
    batch = collate(windows, torch.device("cpu"))
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 14, 50, 51]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1]]
    assert batch.seq_lens == [3, 2, 2]
    assert batch.rows.tolist() == [1, 3, 5]
    assert batch.labels.tolist() == [12, 14, 51]
    assert batch.weights.tolist() == [1.0, 0.5, 1.0]
    assert batch.last.tolist() == [2, 4, 6]
    assert batch.tokens == 7


def test_a_dummy_counts_nothing() -> None:
    batch = collate([], torch.device("cpu"))
    assert batch.tokens == 0
    assert len(batch.rows) == 0
    assert batch.groups == []


@pytest.mark.parametrize("count", [1, 3, 7, 8])
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 3, 100])
def test_every_window_once_and_ranks_in_step(count: int, world: int, micro: int) -> None:
    windows = [window([2], [1, 0], i) for i in range(count)]
    shares = [rank_share(windows, rank, world, micro) for rank in range(world)]
    seen = sorted(int(w.input_ids[0]) for share in shares for part in share for w in part)
    assert seen == list(range(count))
    assert len({len(share) for share in shares}) == 1
    assert all(len(part) <= micro for share in shares for part in share)


def test_chunks_by_tokens_keep_order_and_room() -> None:
    assert chunk_by_tokens([3, 3, 3, 9, 1], lambda n: n, 6) == [[3, 3], [3], [9], [1]]
    assert chunk_by_tokens([], lambda n: n, 6) == []

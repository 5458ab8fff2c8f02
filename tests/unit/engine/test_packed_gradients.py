"""Gradients of packed examples are those of each example alone, whatever a family's attention does.

The reference is the family's own code: `eager`, every example in a forward of its own, all logits.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_model import model

from curriculum.data.windows import Window
from curriculum.engine.batch import collate
from curriculum.engine.head import token_cross_entropy
from curriculum.engine.model import check_isolation, decoder_layers
from curriculum.engine.model.blocks import recompute

FAMILIES: dict[str, dict[str, object]] = {
    "gemma2": {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 0.5},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4, "num_hidden_layers": 6},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "granite": {"attention_multiplier": 0.1, "logits_scaling": 4.0, "residual_multiplier": 0.5},
    "cohere2": {"sliding_window": 4, "num_hidden_layers": 4},
    "phimoe": {"sliding_window": 4, "num_local_experts": 3},  # one example a row
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def windows() -> list[Window]:
    rng = np.random.default_rng(0)
    made = []
    for lengths in ([5, 13, 1], [9], [2, 7]):
        weights = [np.r_[rng.integers(0, 3, n - 1) / 2.0, 0.0] for n in lengths]
        made.append(
            Window(
                input_ids=rng.integers(3, 97, sum(lengths)).astype(np.int32),
                seq_lens=np.array(lengths, np.int32),
                loss_weights=np.concatenate(weights).astype(np.float32),
                document_ids=np.zeros(0, np.int64),
                record_ids=np.arange(len(lengths), dtype=np.int64),
            )
        )
    return made


@pytest.mark.parametrize("which", ["none", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_gradients_are_those_of_each_example_alone(family: str, which: str) -> None:
    more = FAMILIES[family] | (NO_DROPOUT if family == "gpt2" else {})
    subject = model(family, **more)
    reference = copy.deepcopy(subject.lm).train()
    reference.set_attn_implementation("eager")
    check_isolation(subject)
    assert subject.isolates == (family != "phimoe")
    recompute(subject.lm, decoder_layers(subject.lm), which)
    subject.train()
    loss = torch.zeros(())
    for made in windows():
        parts = np.split(made.input_ids, np.cumsum(made.seq_lens)[:-1])
        shares = np.split(made.loss_weights, np.cumsum(made.seq_lens)[:-1])
        for tokens, weights in zip(parts, shares, strict=True):
            ids = torch.from_numpy(tokens).long()
            scores = reference(ids[None], use_cache=False).logits[0, :-1]
            each = F.cross_entropy(scores, ids[1:], reduction="none")
            loss = loss + (each * torch.from_numpy(weights[:-1])).sum()
    loss.backward()
    expected = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    for order in ((0, 1, 2), (2, 0, 1)):
        subject.zero_grad()
        batch = collate([windows()[place] for place in order], torch.device("cpu"))
        got, _ = subject(batch, "rows", token_cross_entropy(batch))
        got.backward()
        assert got.item() == pytest.approx(loss.item(), rel=1e-5)
        found = {n: p.grad for n, p in subject.lm.named_parameters() if p.grad is not None}
        assert found.keys() == expected.keys()
        for name, wanted in expected.items():
            limit = 2e-5 * float(wanted.abs().max()) + 1e-6
            torch.testing.assert_close(found[name], wanted, atol=limit, rtol=1e-4, msg=name)

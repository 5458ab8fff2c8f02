"""The kernel for whole rows: called as its documentation says, and not where it cannot serve."""

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from curriculum.engine import attention, varlen

LENGTHS = [5, 17, 1, 9]


def by_definition(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """What torch documents: `[T, heads, d]`, equal heads, int32 bounds, (left, right) windows."""
    assert query.shape == key.shape == value.shape
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert torch.equal(cu_seq_q, cu_seq_k) and int(cu_seq_q[-1]) == len(query)
    assert max_q == max_k == int(cu_seq_q.diff().max())
    left, right = window_size
    rows = []
    for first, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        for i in range(first, end):
            seen = [
                j
                for j in range(first, end)
                if (left < 0 or j >= i - left) and (right < 0 or j <= i + right)
            ]
            scores = torch.einsum("hd,jhd->hj", query[i], key[seen]) * scale
            rows.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), value[seen]))
    return torch.stack(rows)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, h, sum(LENGTHS), 8, generator=generator).double() for h in (6, 2, 2)]


@pytest.mark.parametrize("window", [None, 1, 4])
def test_it_is_the_attention_of_each_example(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", by_definition)
    got = varlen.attend(*inputs(), LENGTHS, 0.3, window)
    expected = attention.grouped(*inputs(), LENGTHS, 0.3, window)
    torch.testing.assert_close(got, expected)


def test_the_kernel_takes_what_it_is_given() -> None:
    named = inspect.signature(varlen_attn).parameters
    assert list(named)[:7] == list(inspect.signature(by_definition).parameters)[:7]
    assert {"scale", "window_size"} <= named.keys()


def test_a_kernel_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(varlen, "varlen_attn", by_definition)
    assert varlen.agrees.__wrapped__(cpu, attention.grouped)

    def forgets_windows(*given: Any, window_size: tuple[int, int], **more: Any) -> torch.Tensor:
        return by_definition(*given, window_size=(-1, 0), **more)

    monkeypatch.setattr(varlen, "varlen_attn", forgets_windows)
    assert not varlen.agrees.__wrapped__(cpu, attention.grouped)

    def missing(*given: Any, **more: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(varlen, "varlen_attn", missing)
    assert not varlen.agrees.__wrapped__(cpu, attention.grouped)
    assert "differs by" in caplog.text and "no such kernel" in caplog.text


def test_a_row_goes_to_the_kernel_once_it_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here as on a GPU, but for the device; a soft-cap and dropout never do."""
    rows: list[int] = []

    def seen(query: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        rows.append(len(query))
        return by_definition(query, *given, **more)

    monkeypatch.setattr(varlen, "varlen_attn", seen)
    monkeypatch.setattr(varlen, "serves", lambda query, value, dropout: dropout == 0.0)
    monkeypatch.setattr(varlen, "agrees", lambda device, reference: True)
    module = torch.nn.Module()
    out, _ = attention.per_example(module, *inputs(), None, scaling=0.3, seq_lens=LENGTHS)
    assert rows == [sum(LENGTHS)]
    torch.testing.assert_close(out[0], attention.grouped(*inputs(), LENGTHS, 0.3, None))
    for more in ({"softcap": 2.0}, {"dropout": 0.1}):
        attention.per_example(module, *inputs(), None, scaling=0.3, seq_lens=LENGTHS, **more)
    assert len(rows) == 1


def test_a_cpu_has_no_such_kernel() -> None:
    half = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)
    assert not varlen.serves(half, half, 0.0)

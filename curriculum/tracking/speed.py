"""How fast a phase trained, and where its time went: what the ledger's figures come to."""

from curriculum.tracking.ledger import LedgerRow

PARTS = ("data", "forward", "backward", "optimizer")
OTHER = "other"


def time_shares(row: LedgerRow) -> dict[str, float]:
    """Shares of a phase's wall time by part; `other` is what no part accounts for."""
    if not row.seconds:
        return {}
    shares = {part: row.times.get(part, 0.0) / row.seconds for part in PARTS}
    return {**shares, OTHER: max(0.0, 1.0 - sum(shares.values()))}


def utilisation(row: LedgerRow) -> float | None:
    """Model FLOP utilisation: operations that the model needs (recomputation left out) over those
    that the machines could have done in matrix products in the same time (Chowdhery et al., 2022,
    "PaLM", appendix B, with a measured peak)."""
    if row.flops is None or not row.peak_flops or not row.seconds:
        return None
    return row.flops / row.seconds / row.peak_flops


def speed_metrics(row: LedgerRow) -> dict[str, float]:
    """What a tracker shows of a phase that has ended; what is unknown is left out."""
    if not row.seconds:
        return {}
    known = {
        "speed/tokens_per_second": row.forward_tokens / row.seconds,
        "speed/trained_tokens_per_second": row.trained_tokens / row.seconds,
        "speed/utilisation": utilisation(row),
        "speed/peak_memory_bytes": row.peak_memory,
        **{f"time/{part}": share for part, share in time_shares(row).items()},
    }
    return {name: float(value) for name, value in known.items() if value is not None}

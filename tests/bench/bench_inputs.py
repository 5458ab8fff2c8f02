"""Models and examples that the benchmarks of the engine share."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN, WINDOWS = 2048, 4
TRAINED = 0.15
LR = 1e-4
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "model_type": "qwen3",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "smollm2": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}


def write_inputs(root: Path, config: dict[str, Any], steps: int) -> None:
    """Weights of a random model, and examples of log-normal length, about 400 tokens on average."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    options = dict(config)
    model = AutoConfig.for_model(options.pop("model_type"), **options)
    AutoModelForCausalLM.from_config(model, dtype=torch.float32).save_pretrained(root / "model")
    draws = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < (steps + 2) * WINDOWS * SEQ_LEN:
        lengths.append(int(np.clip(draws.lognormal(5.8, 0.7), 20, SEQ_LEN)))
    tokens = [draws.integers(3, config["vocab_size"], length).tolist() for length in lengths]
    (root / "examples.json").write_text(json.dumps(tokens))


def completion_mask(length: int) -> list[int]:
    """The last 15% of an example are trained."""
    trained = max(1, round(TRAINED * length))
    return [0] * (length - trained) + [1] * trained


def packed_windows(root: Path) -> list[Any]:
    """The examples as windows of at most `SEQ_LEN` tokens."""
    from curriculum.data.pack import pack
    from curriculum.data.windows import Window

    examples = json.loads((root / "examples.json").read_text())
    lengths = np.array([len(example) for example in examples])
    windows = []
    for members in pack(lengths, SEQ_LEN):
        masks = [completion_mask(len(examples[i])) for i in members]
        windows.append(
            Window(
                input_ids=np.concatenate([examples[i] for i in members]).astype(np.int32),
                seq_lens=lengths[members].astype(np.int32),
                loss_weights=np.concatenate([[*m[1:], 0] for m in masks]).astype(np.float32),
                document_ids=np.zeros(0, np.int64),
                record_ids=members,
            )
        )
    return windows


def configuration(root: Path, dtype: str) -> Any:
    """A production configuration of the model that `write_inputs` wrote."""
    from curriculum.compose import compose

    return compose(
        ["+plan=corrective", "profile=production", f"engine.dtype={dtype}",
         f"model.path={root / 'model'}", "model=hf", f"engine.threads={threads()}"]
    )  # fmt: skip


def threads() -> int:
    """Cores of this process, shared by the processes of a `torchrun` on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

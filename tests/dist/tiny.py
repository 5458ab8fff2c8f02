"""A tiny model, some windows, and a plain-PyTorch reference that shares no code with the engine."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from curriculum import config as schema
from curriculum.data.windows import Window

VOCABULARY = 97

ENGINE = schema.Engine(
    dtype="float32",
    threads=1,
    micro_batch_tokens=64,
    head_chunk_rows=7,
    replicate=1,
    max_nonfinite_steps=2,
    timeout_seconds=60,
)
OPTIM = schema.Optim(
    name="adamw", lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, max_grad_norm=0.5
)


def model_config(tied: bool, **overrides: object) -> schema.Model:
    values = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        "initializer_range": 0.3,
    }
    return schema.Model(
        name="tiny",
        path=None,
        config=values | overrides,
        tokenizer=None,
        chat_template=None,
        parameters=None,
    )


def reference_model(model: schema.Model, seed: int = 0) -> PreTrainedModel:
    """Equal weights, but in float64, so that a difference is the engine's own rounding."""
    torch.manual_seed(seed)
    options = dict(model.config or {})
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).double()


def examples(kind: str, count: int = 11, seed: int = 0) -> list[tuple[list[int], list[float]]]:
    """Token lists of 2 to 17 tokens with their loss weights; some carry no loss at all."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(2, 18))
        tokens = rng.integers(1, VOCABULARY, length).tolist()
        if kind == "causal":
            weights = [1.0] * (length - 1) + [0.0]
        else:
            start = int(rng.integers(0, length))
            weights = [float(start <= i < length - 1) for i in range(length)]
            if number % 4 == 3:
                weights = [0.0] * length
            if number % 4 == 1:
                weights = [w * 0.3 for w in weights]
        made.append((tokens, weights))
    return made


def windows(made: list[tuple[list[int], list[float]]], per_window: int) -> list[Window]:
    groups = [made[i : i + per_window] for i in range(0, len(made), per_window)]
    return [
        Window(
            input_ids=np.array([t for tokens, _ in group for t in tokens], np.int32),
            seq_lens=np.array([len(tokens) for tokens, _ in group], np.int32),
            loss_weights=np.array([w for _, ws in group for w in ws], np.float32),
            document_ids=np.zeros(0, np.int64),
            record_ids=np.arange(len(group), dtype=np.int64),
        )
        for group in groups
    ]


def groups(count: int = 6, seed: int = 0) -> list[tuple[list[list[int]], list[int]]]:
    """Retrieval groups: texts (query, positive, 1 or 2 negatives) and the identity of each.

    Groups 0 and 1 share their positive; groups 2 and 3 share their query.
    """
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        texts = [
            rng.integers(1, VOCABULARY, int(rng.integers(2, 9))).tolist()
            for _ in range(3 + number % 2)
        ]
        ids = [1000 + 10 * number + i for i in range(len(texts))]
        made.append((texts, ids))
    made[1][0][1], made[1][1][1] = made[0][0][1], made[0][1][1]
    made[3][0][0], made[3][1][0] = made[2][0][0], made[2][1][0]
    return made


def group_windows(made: list[tuple[list[list[int]], list[int]]]) -> list[Window]:
    return [
        Window(
            input_ids=np.array([t for text in texts for t in text], np.int32),
            seq_lens=np.array([len(text) for text in texts], np.int32),
            loss_weights=np.zeros(sum(map(len, texts)), np.float32),
            document_ids=np.array(ids, np.int64),
            record_ids=np.array([number], np.int64),
        )
        for number, (texts, ids) in enumerate(made)
    ]


def token_loss(lm: PreTrainedModel, made: list[tuple[list[int], list[float]]]) -> torch.Tensor:
    """Every example alone, full logits: sum of weighted losses over sum of weights."""
    loss, weight = torch.zeros(()), 0.0
    for tokens, weights in made:
        scores = lm(torch.tensor([tokens]), use_cache=False).logits[0]
        for position, w in enumerate(weights):
            if w:
                loss = loss - w * F.log_softmax(scores[position], -1)[tokens[position + 1]]
                weight += w
    return loss / weight


def retrieval_loss(
    lm: PreTrainedModel, made: list[tuple[list[list[int]], list[int]]], temperature: float
) -> torch.Tensor:
    """Every text alone; equal positives, and positives of an equal query, are left out by hand."""

    def embed(text: list[int]) -> torch.Tensor:
        state = lm.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0, -1]
        return state / state.norm()

    queries = [embed(texts[0]) for texts, _ in made]
    documents = [
        (g, i, ids[i], embed(texts[i]))
        for g, (texts, ids) in enumerate(made)
        for i in range(1, len(texts))
    ]
    positives = {
        g: {ids[1] for _, ids in made if ids[0] == own[0]} for g, (_, own) in enumerate(made)
    }
    losses = []
    for g, query in enumerate(queries):
        scores = [
            (query @ d) / temperature
            for h, i, identity, d in documents
            if (h == g and i == 1) or identity not in positives[g]
        ]
        own = next(d for h, i, _, d in documents if h == g and i == 1)
        losses.append(torch.logsumexp(torch.stack(scores), 0) - (query @ own) / temperature)
    return torch.stack(losses).mean()


def phase(objective: str, batch_size: int) -> schema.Phase:
    task = {"generative": "messages", "causal": "text", "retrieval": "retrieval"}[objective]
    return schema.Phase(
        objective=objective,
        task=task,  # type: ignore[arg-type]
        role="generative",
        batch_size=batch_size,
        seq_len=64,
        data=schema.PhaseData(sources=["none"]),
        retrieval=schema.Retrieval(temperature=0.2, documents=3),
    )


def without_clip(optim: schema.Optim = OPTIM) -> schema.Optim:
    return replace(optim, max_grad_norm=None)

"""Retrieval: InfoNCE from each query to the documents of the whole step.

Gradients of embeddings are cached (Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup"): the step is embedded without gradient, the loss is differentiated
with respect to the embeddings, and each micro-batch is then run again to push its share of that
gradient into the weights. The result is that of one big batch, at any micro-batch size.
"""

from collections.abc import Sequence

import torch

from curriculum.config import Loss, Phase
from curriculum.engine.batch import Batch
from curriculum.engine.head import Embed, Head, Reduce, Sums
from curriculum.errors import UserError
from curriculum.objectives.base import Encode


class RetrievalObjective:
    """Mean over queries of -log softmax(query . document / temperature)[positive].

    With `retrieval.symmetric`, the mean of that and of the same from each positive to the queries.
    """

    def __init__(self, phase: Phase) -> None:
        if phase.retrieval is None:
            raise UserError(
                "objective=retrieval: needs `retrieval: {temperature, documents}` in its card"
            )
        if phase.batch_size * phase.retrieval.documents < 2:
            raise UserError(
                "objective=retrieval: batch_size 1 with retrieval.documents 1 leaves nothing to "
                "tell the positive from; raise one of them"
            )
        if phase.loss != Loss():
            raise UserError(
                "objective=retrieval: label_smoothing and z_loss are for objectives of tokens; "
                "remove `loss` from its card"
            )
        how = Embed(phase.retrieval.layer, phase.retrieval.pooling)
        self.head: Head = "embed" if how == Embed() else how
        self.temperature = phase.retrieval.temperature
        self.symmetric = phase.retrieval.symmetric

    def prepare_step(self, micro_batches: Sequence[Batch], encode: Encode | None) -> list[Reduce]:
        if encode is None:
            return [self._direct(batch) for batch in micro_batches]
        step = encode(micro_batches)
        leaf = step.embeddings.requires_grad_()
        with torch.enable_grad():
            losses = self._losses(leaf, step.text_ids, step.groups)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        reduces, text = [], step.offset
        query = sum(1 for start in _starts(step.groups) if start < step.offset)
        for batch in micro_batches:
            texts, queries = sum(batch.groups), len(batch.groups)
            reduces.append(
                _replay(gradient[text : text + texts], losses[query : query + queries].detach())
            )
            text, query = text + texts, query + queries
        return reduces

    def _direct(self, batch: Batch) -> Reduce:
        def reduce(embeddings: torch.Tensor) -> Sums:
            if not batch.groups:
                return (embeddings * 0.0).sum(), embeddings.new_zeros(())
            losses = self._losses(embeddings, batch.text_ids, batch.groups)
            return losses.sum(), embeddings.new_tensor(float(len(batch.groups)))

        return reduce

    def _losses(
        self, embeddings: torch.Tensor, text_ids: torch.Tensor, groups: Sequence[int]
    ) -> torch.Tensor:
        return info_nce(embeddings, text_ids, groups, self.temperature, self.symmetric)


def _replay(gradient: torch.Tensor, losses: torch.Tensor) -> Reduce:
    """A loss with the value of these queries' losses and the cached gradient of the step."""

    def reduce(embeddings: torch.Tensor) -> Sums:
        if not len(gradient):
            return (embeddings * 0.0).sum(), embeddings.new_zeros(())
        surrogate = (embeddings * gradient).sum()
        value = losses.sum() + surrogate - surrogate.detach()
        return value, embeddings.new_tensor(float(len(losses)))

    return reduce


def info_nce(
    embeddings: torch.Tensor,
    text_ids: torch.Tensor,
    groups: Sequence[int],
    temperature: float,
    symmetric: bool = False,
) -> torch.Tensor:
    """Loss of each query, `[queries]` (van den Oord et al., 2018).

    embeddings `[S, hidden]`: groups end to end, each a query, its positive, its negatives.
    `text_ids` `[S]` says which texts are the same text. A document equal to a query's positive,
    and the positives of the same query elsewhere in the step, are no negatives: they are masked.
    `symmetric` averages in the loss of each query's positive over all queries (Radford et al.,
    2021, "Learning Transferable Visual Models from Natural Language Supervision"): the same
    similarities under the same masks, read the other way.
    """
    starts = torch.tensor(_starts(groups), device=embeddings.device)
    is_document = torch.ones(len(text_ids), dtype=torch.bool, device=embeddings.device)
    is_document[starts] = False
    documents = is_document.nonzero()[:, 0]
    positives = starts + 1
    similarity = embeddings[starts] @ embeddings[documents].T / temperature
    own = documents[None, :] == positives[:, None]
    same_query = text_ids[starts][:, None] == text_ids[starts][None, :]
    positive_ids = text_ids[positives]
    # the ids of all positives of the same query text, against every document
    is_positive_of = positive_ids[:, None] == text_ids[documents][None, :]
    relevant = (same_query.float() @ is_positive_of.float()) > 0
    similarity = similarity.masked_fill(relevant & ~own, float("-inf"))
    target = own.int().argmax(1)
    losses = torch.nn.functional.cross_entropy(similarity, target, reduction="none")
    if symmetric:
        back = similarity[:, target].T
        queries = torch.arange(len(target), device=target.device)
        losses = (losses + torch.nn.functional.cross_entropy(back, queries, reduction="none")) / 2
    return losses


def _starts(groups: Sequence[int]) -> list[int]:
    starts, start = [], 0
    for size in groups:
        starts.append(start)
        start += size
    return starts

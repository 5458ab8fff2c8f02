"""The plan as a directed acyclic graph: who continues whose weights, and in which order.

`after: null` means the phase above in the plan; the first phase continues `plan.init_from`. Several
phases may continue one; a phase of `objective: merge` continues several.
"""

from collections.abc import Container

from curriculum.config import Phase, Plan
from curriculum.errors import UserError


def parents(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Names of the phases that each phase continues; `()` for a phase that starts the plan."""
    found: dict[str, tuple[str, ...]] = {}
    above: tuple[str, ...] = ()
    for name, phase in plan.phases.items():
        match phase.after:
            case None:
                found[name] = above
            case str():
                found[name] = (phase.after,)
            case _:
                found[name] = tuple(phase.after)
        above = (name,)
    return found


def order(plan: Plan) -> list[str]:
    """Phases with every parent before its children; otherwise as declared.

    Raises `UserError` on an empty plan, an unknown or repeated parent, several parents without
    `objective: merge`, a cycle, or more than one last phase.
    """
    if not plan.phases:
        raise UserError("plan.phases: a plan needs at least one phase")
    edges = parents(plan)
    for name, above in edges.items():
        _check_parents(name, plan.phases[name], above, list(plan.phases))
    done: list[str] = []
    waiting = list(plan.phases)
    while waiting:
        ready = next((name for name in waiting if set(edges[name]) <= set(done)), None)
        if ready is None:
            raise UserError(_cycle_message(edges, waiting))
        waiting.remove(ready)
        done.append(ready)
    last = [name for name in done if not any(name in above for above in edges.values())]
    if len(last) > 1:
        raise UserError(
            f"plan.phases: a plan ends in one model, but {' and '.join(last)} have no successor; "
            "set `after` so that one of them continues the other, or merge them"
        )
    return done


def merges(plan: Plan) -> list[str]:
    """Phases that average others, as declared."""
    return [name for name, phase in plan.phases.items() if phase.is_merge]


def ancestors(plan: Plan, phase: str) -> list[str]:
    """Phases whose steps lie before `phase`: along its longest line of parents, first one first."""
    edges = parents(plan)
    lines = [[*ancestors(plan, parent), parent] for parent in edges[phase]]
    return max(lines, key=len, default=[])


def unfinished(plan: Plan, finished: Container[str]) -> list[str]:
    """Phases that have to be run to get the plan's model, in order.

    The last phase, unless it is finished, and so up its lines of parents: what only leads to a
    finished phase is not needed again.
    """
    edges, phases = parents(plan), order(plan)
    needed = {phases[-1]}
    for name in reversed(phases):
        if name in needed and name not in finished:
            needed.update(edges[name])
    return [name for name in phases if name in needed and name not in finished]


def closing(plan: Plan) -> list[str]:
    """The phases that train last: nothing but merges follows them."""
    edges, phases = parents(plan), order(plan)
    trained_after: set[str] = set()
    for name in reversed(phases):
        if not plan.phases[name].is_merge or name in trained_after:
            trained_after.update(edges[name])
    return [n for n in phases if not plan.phases[n].is_merge and n not in trained_after]


def _check_parents(name: str, phase: Phase, above: tuple[str, ...], known: list[str]) -> None:
    key = f"plan.phases.{name}.after"
    if phase.after == []:
        raise UserError(f"{key}=[]: give a phase, or null for the phase above")
    for parent in above:
        if parent not in known:
            raise UserError(f"{key}={parent!r}: no such phase; phases: {', '.join(known)}")
    if len(set(above)) < len(above):
        raise UserError(f"{key}={list(above)}: a parent is named twice")
    if phase.is_merge and len(above) < 2:
        given = f"{key}={list(above)}" if phase.after is not None else f"{key}=null"
        raise UserError(f"{given}: objective merge averages several phases; name two or more")
    if len(above) > 1 and not phase.is_merge:
        raise UserError(
            f"{key}={list(above)}: several parents need objective: merge, "
            f"not {phase.objective_name!r}"
        )


def _cycle_message(edges: dict[str, tuple[str, ...]], waiting: list[str]) -> str:
    """Walk up from a phase that never became ready until a name repeats."""
    path = [waiting[0]]
    while path.count(path[-1]) < 2:
        path.append(next(parent for parent in edges[path[-1]] if parent in waiting))
    cycle = path[path.index(path[-1]) :]
    return (
        f"plan.phases: cycle {' -> '.join(cycle)} (each continues the next); "
        f"change `after` of one of them"
    )

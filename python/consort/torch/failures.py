"""The library's errors as PyTorch's.

Invariant: the library's sentence is in the text, unchanged; the error itself is the `__cause__`. Absent: when to raise.
"""

from __future__ import annotations

from typing import Optional, Sequence

import torch.distributed as dist

from ..errors import Error


def raised(error: BaseException, ranks: Optional[Sequence[int]] = None) -> BaseException:
    """What PyTorch's caller gets for an error of an operation.

    Args:
        ranks: the job's ranks that the ranks in the sentence stand for; None where they are the same.
    """
    if not isinstance(error, Exception) or isinstance(error, dist.DistBackendError):
        return error
    text = str(error) or type(error).__name__
    if ranks is not None and isinstance(error, Error):
        about = [rank for rank in (error.peers or (error.rank,)) if rank is not None and rank < len(ranks)]
        meant = [f"rank {rank} is rank {ranks[rank]} of the job" for rank in about if ranks[rank] != rank]
        if meant:
            text += f" ({', '.join(meant)})"
    made = dist.DistBackendError(text)
    made.__cause__ = error
    return made

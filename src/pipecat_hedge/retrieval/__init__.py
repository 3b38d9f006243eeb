"""Retrieval beside generation: documents for a turn, looked up while the caller still speaks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipecat_hedge.retrieval.retriever import Document, Retriever

if TYPE_CHECKING:
    from pipecat_hedge.retrieval.folder import FolderRetriever
    from pipecat_hedge.retrieval.processor import RetrievalProcessor, RetrievalReport

__all__ = ["Document", "FolderRetriever", "RetrievalProcessor", "RetrievalReport", "Retriever"]

_MODULES = {
    "folder": ("FolderRetriever",),
    "processor": ("RetrievalProcessor", "RetrievalReport"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

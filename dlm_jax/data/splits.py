"""Hold out validation text before any window is cut, so that no training window reaches into it."""

import hashlib
from collections.abc import Sequence

from dlm_jax.data.sources import Document

_FEW = 10


def split_documents(
    documents: Sequence[Document], *, fraction: float, split: str = "auto"
) -> tuple[list[Document], list[Document]]:
    """Divide documents into training and validation.

    By ``document``, documents are taken in the order of a hash of their text until their share of
    the characters is reached; equal texts always fall on the same side. By ``span``, the end of the
    text is held out, cut at a line or word boundary.

    Args:
      documents: all documents.
      fraction: share of the text to hold out.
      split: ``document``, ``span``, or ``auto`` for documents where there are at least 10.

    Returns:
      (training, validation), each in the given order.

    Raises:
      ValueError: if one side would be empty, or would hold text of the other.
    """
    if split == "auto":
        split = "document" if len({d.text for d in documents}) >= _FEW else "span"
    if split == "document":
        train, held = _by_document(documents, fraction)
    else:
        train, held = _by_span(documents, fraction)
    if not train or not held:
        raise ValueError(
            f"{len(documents)} documents cannot be split with validation_fraction={fraction} by "
            f"{split}: one side would be empty; give more text or split='span'"
        )
    check_disjoint(train, held)
    return train, held


def _by_document(
    documents: Sequence[Document], fraction: float
) -> tuple[list[Document], list[Document]]:
    sizes: dict[str, int] = {}
    for document in documents:
        sizes[document.text] = sizes.get(document.text, 0) + len(document.text)
    wanted = fraction * sum(sizes.values())
    held: set[str] = set()
    taken = 0
    for text in sorted(sizes, key=lambda text: hashlib.sha256(text.encode("utf-8")).digest()):
        # A document that overshoots by more than it helps is passed over.
        if taken + sizes[text] <= 1.5 * wanted:
            held.add(text)
            taken += sizes[text]
        if taken >= wanted:
            break
    train = [document for document in documents if document.text not in held]
    return train, [document for document in documents if document.text in held]


def _by_span(
    documents: Sequence[Document], fraction: float
) -> tuple[list[Document], list[Document]]:
    total = sum(len(document.text) for document in documents)
    boundary = round(total * (1 - fraction))
    train: list[Document] = []
    held: list[Document] = []
    position = 0
    for document in documents:
        start, position = position, position + len(document.text)
        if position <= boundary:
            train.append(document)
        elif start >= boundary:
            held.append(document)
        else:
            if sum(other.text == document.text for other in documents) > 1:
                raise ValueError(
                    f"{document.name} is cut between training and validation, and the same text "
                    "occurs twice, so training would hold what validation scores; remove the "
                    "repetition or use split='document'"
                )
            cut = _boundary(document.text, boundary - start)
            for side, text in ((train, document.text[:cut]), (held, document.text[cut:])):
                if text:
                    side.append(document._replace(text=text))
    return train, held


def _boundary(text: str, near: int) -> int:
    """A cut at or before ``near``, behind a newline or a space if there is one close by."""
    for mark in ("\n", " "):
        found = text.rfind(mark, max(0, near - 1000), near)
        if found >= 0:
            return found + 1
    return near


def check_disjoint(train: Sequence[Document], held: Sequence[Document]) -> None:
    """Refuse a split in which a whole document stands on both sides.

    Raises:
      ValueError: naming the document.
    """
    texts = {document.text for document in train}
    for document in held:
        if document.text in texts:
            raise ValueError(
                f"{document.name} is in training and in validation: the same text occurs twice; "
                "remove the repetition or use split='document'"
            )

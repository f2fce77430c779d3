"""The leaves of a state: their names, and whether saved ones fit wanted ones."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from dlm_jax.checkpoints.errors import CheckpointError


def named(tree: Any) -> dict[str, Any]:
    """Leaves by dotted path, in the order of the tree."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves = {".".join(_part(key) for key in path): leaf for path, leaf in flat}
    if len(leaves) < len(flat) or "" in leaves:
        raise ValueError("every leaf of a state needs a name of its own; rename keys with dots")
    return leaves


def plain(leaves: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts from dotted paths, so that a checkpoint can be read without our classes."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *branches, last = name.split(".")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[last] = leaf
    return tree


def rebuild(like: Any, tree: dict[str, Any]) -> Any:
    """The structure of ``like`` with the leaves of nested dicts."""
    leaves = named(tree)
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in named(like)])


def abstract(tree: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of each leaf by dotted path; the first device if it has none.

    Raises:
      TypeError: for a leaf that is no array.
      ValueError: for a dtype that JAX would change, such as float64 without x64.
    """
    # An orbax checkpoint names the devices that wrote it, and without a sharding asks for them.
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    structs = {}
    for name, leaf in named(tree).items():
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"{name} is a {type(leaf).__name__}; checkpoints hold arrays only")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"{name} is a {leaf.dtype}; keep jax.random.key_data of it instead")
        if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
            raise ValueError(
                f"{name} is {leaf.dtype}, which JAX turns into "
                f"{jax.dtypes.canonicalize_dtype(leaf.dtype)}; cast it, or enable jax_enable_x64"
            )
        sharding = getattr(leaf, "sharding", None) or first
        structs[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return structs


def writable(tree: Any) -> dict[str, Any]:
    """Leaves by dotted path, after a look at whether all can be saved.

    Raises:
      TypeError: for a leaf that is no array.
      ValueError: for an array that was donated, or that JAX would cast.
    """
    abstract(tree)
    leaves = named(tree)
    for name, leaf in leaves.items():
        # Orbax would notice after it has started to write.
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise ValueError(f"{name} was donated or deleted; save what the step returned instead")
    return leaves


def check_fits(path: Path, wanted: dict[str, Any], *, inside: str | None = None) -> None:
    """Compare saved leaves with wanted ones before any is read.

    Args:
      path: an orbax folder of arrays.
      wanted: leaves by dotted path.
      inside: look only at this branch of what is saved.

    Raises:
      CheckpointError: naming the first leaf that differs and how.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(path).item_metadata
    if metadata is None:
        raise ValueError(f"the list of arrays in {path} cannot be read")
    saved = named(metadata.tree)
    if inside is not None:
        branches = dict.fromkeys(name.split(".")[0] for name in saved)
        if inside not in branches:
            raise CheckpointError(f"{path} holds no {inside}; ask for one of {list(branches)}")
        saved = {name: leaf for name, leaf in saved.items() if name.split(".")[0] == inside}
    for name in [*wanted, *(name for name in saved if name not in wanted)]:
        if name not in wanted:
            reason = f"{name} is {_kind(saved[name])} there and does not exist here"
        elif name not in saved:
            reason = f"{name} does not exist there and is {_kind(wanted[name])} here"
        elif _kind(saved[name]) != _kind(wanted[name]):
            reason = f"{name} is {_kind(saved[name])} there and {_kind(wanted[name])} here"
        else:
            continue
        raise CheckpointError(
            f"{path} was saved by another model or optimiser: {reason}; use the config it was "
            "made with, or another folder"
        )


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _part(key: Any) -> str:
    """Dict key, field name or index of one step of a path; orbax saves all three as text."""
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))

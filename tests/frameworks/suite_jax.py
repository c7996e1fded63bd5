"""JAX's primitives on one GPU: every use of its own database, and the derivatives.

usage: suite_jax.py SHARD SHARDS [--skip N] [--only CASE...]

The database is part of JAX's wheel, and needs absl-py. A case is a use of a primitive with
given shapes and types. Its results are those under jit and, where JAX differentiates
it, those of the reverse mode; suite.py says what is printed.
"""

import hashlib
import os

# The processes of a suite share the GPU. XLA does not choose algorithms by their time.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true " + os.environ.get("XLA_FLAGS", "")

# pylint: disable=wrong-import-position
import jax
import numpy
from jax._src.internal_test_util.test_harnesses import all_harnesses
from suite import attempted, run


def digest(values):
    """A digest of arrays in a structure."""
    total = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(values):
        # Random keys, and what is no array.
        leaf = jax.random.key_data(leaf) if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key) else leaf
        array = numpy.asarray(leaf)
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(numpy.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def inexact(value):
    """Whether a derivative by this argument exists."""
    kind = getattr(value, "dtype", None)
    return kind is not None and jax.dtypes.issubdtype(kind, jax.numpy.inexact)


def arguments_of(use):
    """A use's arguments, always the same."""
    return use.dyn_args_maker(numpy.random.RandomState(7))


def forward(use):
    """A digest of the results."""
    return digest(jax.jit(use.dyn_fun)(*arguments_of(use)))


def backward(use):
    """A digest of the derivatives by all arguments that have one."""
    arguments = arguments_of(use)
    places = [place for place, value in enumerate(arguments) if inexact(value)]
    if not places:
        return "none"

    def of(*some):
        whole = list(arguments)
        for place, value in zip(places, some, strict=True):
            whole[place] = value
        return use.dyn_fun(*whole)

    def slopes(*some):
        results, pull = jax.vjp(of, *some)
        return pull(jax.tree.map(jax.numpy.ones_like, results))

    return digest(jax.jit(slopes)(*(arguments[place] for place in places)))


def tried(use, most):
    """The results of a use."""
    return [attempted(way, use) for way in (forward, backward)[:most]]


def main():
    """Runs the cases of a shard."""
    jax.config.update("jax_enable_x64", True)
    # Their order varies from process to process.
    uses = {use.fullname: use for use in all_harnesses if use.filter("gpu")}
    run(__doc__, sorted(uses.items()), tried, lambda: jax.numpy.zeros(1).block_until_ready())


if __name__ == "__main__":
    main()

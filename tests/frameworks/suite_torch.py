"""PyTorch's operators on one GPU: every sample of its own database, forward and backward.

usage: suite_torch.py SHARD SHARDS [--skip N] [--samples N] [--only CASE...]

A case is an operator and a type; of each sample there is a digest of its results and
gradients. suite.py says what is printed. PyTorch is told to be deterministic; where it
warns that an operator is not, the digest is left out.
"""

import hashlib
import itertools
import warnings

import torch
from suite import attempted, run
from torch.testing._internal.common_methods_invocations import op_db

# What operators leave as they find it is no result.
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
# Those of an operator's types that are tried.
TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64)
# What PyTorch says of an operator that adds in any order.
UNORDERED = "does not have a deterministic implementation"


def cases():
    """Operators with the types that they have on a GPU."""
    for operator in op_db:
        if operator.name in UNDEFINED:
            continue
        known = operator.supported_dtypes("cuda")
        for kind in TYPES:
            if kind in known:
                yield operator, kind


def name_of(operator, kind):
    """What a case is called."""
    return f"{operator.name}.{operator.variant_test_name}".rstrip(".") + f" {str(kind)[6:]}"


def tensors(value):
    """The tensors in results of any shape."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def taken(total, tensor):
    """Adds a tensor's type, shape and bytes to a digest."""
    tensor = tensor.detach()
    total.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.layout}".encode())
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.numel():
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def result_of(operator, sample, backward):
    """A digest of what an operator makes of a sample, and of the gradients."""
    total = hashlib.blake2b(digest_size=8)
    results = list(tensors(operator(sample.input, *sample.args, **sample.kwargs)))
    for result in results:
        taken(total, result)
    if backward:
        inputs = [each for each in tensors((sample.input, sample.args, sample.kwargs)) if each.requires_grad]
        roots = [result for result in results if result.requires_grad]
        if inputs and roots:
            slopes = torch.autograd.grad(roots, inputs, [torch.ones_like(root) for root in roots], allow_unused=True)
            for slope in slopes:
                if slope is not None:
                    taken(total, slope)
    return total.hexdigest()


def judged(operator, sample, backward):
    """The digest of a sample, or that its results have no order."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = result_of(operator, sample, backward)
    return "unordered" if any(UNORDERED in str(each.message) for each in said) else result


def tried(case, most):
    """Results of an operator's samples of a type."""
    operator, kind = case
    torch.manual_seed(0)
    floating = kind.is_floating_point or kind.is_complex
    backward = floating and operator.supports_autograd and kind in operator.supported_backward_dtypes("cuda")
    samples = itertools.islice(operator.sample_inputs("cuda", kind, requires_grad=backward), most)
    return [attempted(judged, operator, sample, backward) for sample in samples]


def main():
    """Runs the cases of a shard."""
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)
    run(__doc__, [(name_of(*case), case) for case in cases()], tried, torch.cuda.synchronize)


if __name__ == "__main__":
    main()

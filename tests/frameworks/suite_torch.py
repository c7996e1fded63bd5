"""PyTorch's operators on one GPU: every sample of its own database, forward and backward.

usage: suite_torch.py SHARD SHARDS [--skip N] [--samples N] [--only CASE...]

Prints a line of JSON when a case (an operator and a type) begins and one when it
is over, with a digest of its results and gradients for each sample, or the error.
PyTorch is told to be deterministic; where it warns that an operator is not, the
digest is left out.
A case that leaves the device in error ends the process with status 3: the caller
starts it again behind that case.
"""

import argparse
import hashlib
import json
import signal
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db

# What operators leave as they find it is no result.
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
# Those of an operator's types that are tried, and seconds that a case may take.
TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64)
PATIENCE = 20
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


def tried(operator, kind, most):
    """Results of an operator's samples of a type."""
    torch.manual_seed(0)
    floating = kind.is_floating_point or kind.is_complex
    backward = floating and operator.supports_autograd and kind in operator.supported_backward_dtypes("cuda")
    found = []
    for number, sample in enumerate(operator.sample_inputs("cuda", kind, requires_grad=backward)):
        if number >= most:
            break
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                result = result_of(operator, sample, backward)
            found.append("unordered" if any(UNORDERED in str(each.message) for each in said) else result)
        except TimeoutError:
            raise
        except Exception as error:  # pylint: disable=broad-except
            found.append(failure(error))
    return found


def failure(error):
    """An error's type and first line."""
    text = (str(error).strip() or "no text").splitlines()[0]
    return f"{type(error).__name__}: {text[:160]}"


def late(_signal, _frame):
    """A case takes too long."""
    raise TimeoutError(f"no end within {PATIENCE} s")


def main():
    """Runs the cases of a shard."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shard", type=int)
    parser.add_argument("shards", type=int)
    parser.add_argument("--skip", type=int, default=0, help="cases of this shard that are left out")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases, as they are printed, instead of all")
    parser.add_argument("--samples", type=int, default=6, help="samples of a case at most")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)
    signal.signal(signal.SIGALRM, late)
    chosen = [each for each in cases() if not options.only or name_of(*each) in options.only]
    for operator, kind in chosen[options.shard :: options.shards][options.skip :]:
        name = name_of(operator, kind)
        print(json.dumps({"begins": name}), flush=True)
        signal.alarm(PATIENCE)
        try:
            line = {"case": name, "results": tried(operator, kind, options.samples)}
        except Exception as error:  # pylint: disable=broad-except
            line = {"case": name, "error": failure(error)}
        signal.alarm(0)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(json.dumps({"case": name, "error": f"device: {failure(error)}"}), flush=True)
            sys.exit(3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

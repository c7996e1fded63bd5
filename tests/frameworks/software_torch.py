"""Stock PyTorch on the software GPU, compared with its own results on the CPU.

usage: software_torch.py CASE...

PyTorch's wheels carry machine code alone for its own kernels, which the software
GPU does not run. What `torch.compile` makes of the same operators is PTX, by
Triton; products come from cuBLAS, which carries PTX. Prints a line of JSON for
each case.
"""

import json
import sys
import time

import torch
import torch._inductor.config

# NVIDIA's libraries take their PTX for a device that they do not know (13.0); Triton
# knows none above 12.1.
torch.cuda.get_device_capability = lambda device=None: (12, 1)
# Inductor would compute constants with PyTorch's own kernels.
torch._inductor.config.joint_graph_constant_folding = False  # pylint: disable=protected-access
# Nor is there a point in timing variants of a kernel here.
torch._inductor.config.deterministic = True  # pylint: disable=protected-access
# Seconds in which as many operators as can be are tried.
PATIENCE = 300
WANTED = 200
CASES = {}
# What they compute depends on a generator, or is not defined.
RANDOM = ("rand", "dropout", "normal", "bernoulli", "multinomial", "empty", "uniform", "exponential", "cauchy", "geometric")


def case(function):
    """Registers a case."""
    CASES[function.__name__] = function
    return function


def there(value):
    """The same on the GPU: tensors, also in lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda")
    if isinstance(value, (list, tuple)):
        return type(value)(there(each) for each in value)
    if isinstance(value, dict):
        return {name: there(each) for name, each in value.items()}
    return value


def here(value):
    """The same on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return tuple(here(each) for each in value) if isinstance(value, (list, tuple)) else value


def close(found, expected, tolerance=1e-4):
    """Fails where results differ."""
    torch.testing.assert_close(here(found), here(expected), rtol=tolerance, atol=tolerance, equal_nan=True)


@case
def tensors():
    """What needs no kernel of PyTorch's own: memory, copies, views."""
    table = torch.arange(24.0).reshape(4, 6)
    close(there(table), table, 0)
    close(torch.zeros(3, 5, device="cuda"), torch.zeros(3, 5), 0)
    close(there(table)[1:3], table[1:3], 0)
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    return {}


@case
def products():
    """cuBLAS."""
    for kind, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        left, right = torch.randn(65, 130, dtype=kind), torch.randn(130, 33, dtype=kind)
        close(there(left) @ there(right), left @ right, tolerance)
        close(torch.addmm(there(right[:65]), there(left), there(right)), torch.addmm(right[:65], left, right), tolerance)
        close(torch.bmm(there(left)[None], there(right)[None]), (left @ right)[None], tolerance)
    return {}


@case
def eager_kernels_are_refused_by_name():
    """An operator of PyTorch's own has machine code alone: an error, no wrong result."""
    values = there(torch.ones(4))
    try:
        (values + values).cpu()
    except RuntimeError as error:
        assert "no kernel image" in str(error), error
        return {"error": str(error).splitlines()[0]}
    raise AssertionError("it ran")


def network():
    """A training step of a network of two layers, with its initial state."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator)

    inputs = numbers(64, 16)
    wanted = torch.sin(inputs.sum(1, keepdim=True))
    weights = (numbers(16, 32) * 0.3, numbers(32) * 0.1, numbers(32, 1) * 0.3, numbers(1) * 0.1)

    def loss(weights, inputs, wanted):
        first, bias, second, last = weights
        hidden = torch.tanh(inputs @ first + bias)
        return ((hidden @ second + last - wanted) ** 2).mean()

    def step(weights, inputs, wanted):
        slopes, error = torch.func.grad_and_value(loss)(weights, inputs, wanted)
        return tuple(weight - 0.1 * slope for weight, slope in zip(weights, slopes)), error

    return step, weights, inputs, wanted


@case
def training():
    """Forward, backward and the update of a two-layer network, compiled: the CPU's losses."""
    step, weights, inputs, wanted = network()
    compiled = torch.compile(step, fullgraph=True)
    remote, inputs_there, wanted_there = there(weights), there(inputs), there(wanted)
    losses = []
    for _ in range(40):
        weights, expected = step(weights, inputs, wanted)
        remote, found = compiled(remote, inputs_there, wanted_there)
        close(found, expected, 1e-3)
        losses.append(float(found.cpu()))
    assert losses[-1] < 0.6 * losses[0], losses
    close(remote, weights, 1e-3)
    return {"first_loss": losses[0], "last_loss": losses[-1]}


def samples():
    """Operators of PyTorch's own database, with one sample each."""
    from torch.testing._internal.common_methods_invocations import op_db  # pylint: disable=import-outside-toplevel

    for operator in op_db:
        if any(word in operator.name for word in RANDOM) or not operator.supports_dtype(torch.float32, "cpu"):
            continue
        try:
            sample = next(iter(operator.sample_inputs("cpu", torch.float32)))
            expected = operator.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # pylint: disable=broad-except
            continue
        yield operator, sample, expected


@case
def operators():
    """As many operators as can be, each compiled."""
    end = time.monotonic() + PATIENCE
    passed, refused, wrong = [], {}, {}
    for operator, sample, expected in samples():
        if len(passed) >= WANTED or time.monotonic() > end:
            break
        name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
        torch._dynamo.reset()  # pylint: disable=protected-access
        try:
            arguments = there((sample.input, *sample.args))
            found = torch.compile(operator.op)(*arguments, **there(sample.kwargs))
            found = here(found)
        except Exception as error:  # pylint: disable=broad-except
            refused[name] = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
            continue
        try:
            close(found, expected, 1e-3)
            passed.append(name)
        except AssertionError as error:
            wrong[name] = str(error).strip().splitlines()[0]
    return {"passed": len(passed), "refused": refused, "wrong": wrong}


def main():
    """Runs the named cases, or all."""
    torch.manual_seed(0)
    for name in sys.argv[1:] or CASES:
        begin = time.monotonic()
        line = {"case": name}
        try:
            line.update(CASES[name]())
        except Exception as error:  # pylint: disable=broad-except
            line["error_of_case"] = f"{type(error).__name__}: {str(error).strip()[:600]}"
        line["seconds"] = round(time.monotonic() - begin, 1)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

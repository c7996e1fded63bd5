"""Programs that generate their kernels and use the driver's interface by themselves: OpenMM through
NVRTC, Dr.Jit with PTX of its own, IREE with modules that were compiled elsewhere."""

import os
import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position,import-outside-toplevel
import numpy

from common import case, main


@case
def openmm_dynamics():
    """OpenMM: twenty steps of charged particles in a box, with its own FFT."""
    import openmm

    system, force, bonds = openmm.System(), openmm.NonbondedForce(), openmm.HarmonicBondForce()
    edge, spacing = 8, 0.4
    places = [openmm.Vec3(x, y, z) * spacing for x in range(edge) for y in range(edge) for z in range(edge)]
    for index, _ in enumerate(places):
        system.addParticle(16)
        force.addParticle(0.1 if index % 2 else -0.1, 0.3, 0.5)
    for index in range(0, len(places), 2):
        bonds.addBond(index, index + 1, spacing, 1000)
        force.addException(index, index + 1, 0, 0.3, 0)
    size = edge * spacing
    system.setDefaultPeriodicBoxVectors((size, 0, 0), (0, size, 0), (0, 0, size))
    force.setNonbondedMethod(force.PME)
    force.setCutoffDistance(0.9)
    system.addForce(force)
    system.addForce(bonds)
    platform = openmm.Platform.getPlatformByName("CUDA")
    options = {"DeterministicForces": "true", "Precision": "mixed"}
    context = openmm.Context(system, openmm.VerletIntegrator(0.002), platform, options)
    context.setPositions(places)

    def step():
        context.getIntegrator().step(20)
        state = context.getState(positions=True, energy=True)
        return state.getPositions(asNumpy=True)._value, numpy.float64(state.getPotentialEnergy()._value)  # pylint: disable=protected-access

    return step


@case
def drjit_arithmetic():
    """Dr.Jit: special functions, gathers, scattered sums, a recorded loop, a derivative."""
    import drjit
    from drjit.cuda import Float, UInt
    from drjit.cuda.ad import Float as Traced

    numbers = drjit.arange(Float, 100_000) / 1000

    def step():
        values = drjit.sin(numbers) * drjit.exp(-numbers * 0.1) + drjit.erf(numbers)
        picked = drjit.gather(Float, values, drjit.arange(UInt, 1000) * 7)
        counts = drjit.zeros(UInt, 16)
        drjit.scatter_reduce(drjit.ReduceOp.Add, counts, UInt(1), drjit.arange(UInt, 100_000) % 16)
        traced = Traced([1.0, 2.0, 3.0])
        drjit.enable_grad(traced)
        drjit.backward(drjit.sum(drjit.sin(traced) * traced))
        return values.numpy(), picked.numpy(), counts.numpy(), drjit.prefix_sum(picked).numpy(), traced.grad.numpy()

    return step


@case
def iree_module():
    """IREE: products, a softmax and a reduction, of the module that TEST_IREE_MODULE names."""
    import iree.runtime

    with open(os.environ["TEST_IREE_MODULE"], "rb") as file:
        compiled = file.read()
    config = iree.runtime.Config("cuda")
    module = iree.runtime.load_vm_module(iree.runtime.VmModule.copy_buffer(config.vm_instance, compiled), config)
    random = numpy.random.default_rng(3)
    left, right = (random.random(shape, numpy.float32) for shape in ((64, 96), (96, 48)))
    rows, numbers = random.random((8, 128), numpy.float32), random.random(1024, numpy.float32)
    return lambda: (module.mm(left, right).to_host(), module.soft(rows).to_host(), module.chain(numbers).to_host())


if __name__ == "__main__":
    main(lambda: None, BEGAN)

"""ONNX Runtime's CUDA provider: inference with a transformer and with convolutions."""

import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position
import numpy
import onnxruntime

# NVIDIA's libraries of the registry's wheels.
onnxruntime.preload_dlls()

from onnx import TensorProto, helper, numpy_helper

from common import case, main

LAYERS, WIDTH, HEADS, LENGTH = 6, 512, 8, 128
CHANNELS, BLOCKS, EDGE = 64, 8, 56


class Graph:
    """A model that is written down operator by operator, with weights that depend on their shapes alone."""

    def __init__(self):
        self.nodes, self.weights, self.random = [], [], numpy.random.default_rng(7)

    def add(self, operator, *inputs, **attributes):
        """An operator's output."""
        output = f"{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, value):
        """A constant."""
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(numpy.asarray(value), name))
        return name

    def weight(self, *shape):
        """Small random weights of half precision."""
        return self.constant((self.random.standard_normal(shape) * shape[0] ** -0.5).astype(numpy.float16))

    def session(self, shape, output):
        """What runs the model on the GPU, for inputs of a shape."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT16, None)]
        graph = helper.make_graph(self.nodes, "random weights", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Results repeat themselves: no choice of algorithms by their time.
        provider = ("CUDAExecutionProvider", {"cudnn_conv_algo_search": "HEURISTIC"})
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])
        if "CUDAExecutionProvider" not in session.get_providers():
            raise RuntimeError("this ONNX Runtime has no CUDA provider")
        return session


def inference(graph, shape, output):
    """A step that computes an array from an array, both the program's."""
    session = graph.session(shape, output)
    values = graph.random.standard_normal(shape).astype(numpy.float16)
    return lambda: session.run(None, {"x": values})[0]


@case
def transformer_inference():
    """Six layers of width 512, four texts of 128 words, half precision."""
    graph, x, shape = Graph(), "x", (4, LENGTH, WIDTH)
    split = graph.constant(numpy.array([0, 0, HEADS, WIDTH // HEADS]))
    joined = graph.constant(numpy.array([0, 0, WIDTH]))
    scale = graph.constant(numpy.float16((WIDTH // HEADS) ** -0.5))

    def normed(x):
        ones, zeros = (graph.constant(numpy.full(WIDTH, value, numpy.float16)) for value in (1, 0))
        return graph.add("LayerNormalization", x, ones, zeros)

    def heads(x, order):
        product = graph.add("MatMul", x, graph.weight(WIDTH, WIDTH))
        return graph.add("Transpose", graph.add("Reshape", product, split), perm=order)

    for _ in range(LAYERS):
        y = normed(x)
        query, key, value = heads(y, (0, 2, 1, 3)), heads(y, (0, 2, 3, 1)), heads(y, (0, 2, 1, 3))
        scores = graph.add("Softmax", graph.add("Mul", graph.add("MatMul", query, key), scale), axis=-1)
        mixed = graph.add("Reshape", graph.add("Transpose", graph.add("MatMul", scores, value), perm=(0, 2, 1, 3)), joined)
        x = graph.add("Add", x, graph.add("MatMul", mixed, graph.weight(WIDTH, WIDTH)))
        wide = graph.add("Gelu", graph.add("MatMul", normed(x), graph.weight(WIDTH, 4 * WIDTH)))
        x = graph.add("Add", x, graph.add("MatMul", wide, graph.weight(4 * WIDTH, WIDTH)))
    return inference(graph, shape, x)


@case
def convolutions_inference():
    """Eight residual blocks of 64 channels, eight images, half precision."""
    graph, x, shape = Graph(), "x", (8, CHANNELS, EDGE, EDGE)

    def convolved(x):
        kernel = graph.constant((graph.random.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 24).astype(numpy.float16))
        return graph.add("Conv", x, kernel, pads=(1, 1, 1, 1))

    for _ in range(BLOCKS):
        y = convolved(graph.add("Relu", convolved(x)))
        x = graph.add("Relu", graph.add("Add", x, y))
    return inference(graph, shape, graph.add("GlobalAveragePool", x))


if __name__ == "__main__":
    # Each run waits for its result.
    main(lambda: None, BEGAN)

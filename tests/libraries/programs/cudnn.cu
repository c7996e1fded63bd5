// cuDNN: a convolution forward and backward, pooling, softmax, and activation,
// compared with loops on the CPU.

#include "library.h"

#include <cudnn.h>

static const int images = 2, channels = 4, maps = 6, height = 12, width = 10, window = 3;
static const float one = 1, none = 0;

static cudnnTensorDescriptor_t tensor(int n, int c, int h, int w) {
    cudnnTensorDescriptor_t descriptor;
    LIBRARY_CHECK(cudnnCreateTensorDescriptor(&descriptor));
    LIBRARY_CHECK(cudnnSetTensor4dDescriptor(descriptor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    return descriptor;
}

using Numbers = std::vector<float>;

// Calls `with(input, filter, output)` for each product of a convolution with
// padding 1, which leaves the sizes as they are.
template <typename With> static void products(With with) {
    for (int n = 0; n < images; ++n)
        for (int m = 0; m < maps; ++m)
            for (int y = 0; y < height; ++y)
                for (int x = 0; x < width; ++x)
                    for (int c = 0; c < channels; ++c)
                        for (int fy = 0; fy < window; ++fy)
                            for (int fx = 0; fx < window; ++fx) {
                                int iy = y + fy - 1, ix = x + fx - 1;
                                if (iy >= 0 && iy < height && ix >= 0 && ix < width) {
                                    with(((n * channels + c) * height + iy) * width + ix,
                                         ((m * channels + c) * window + fy) * window + fx,
                                         ((n * maps + m) * height + y) * width + x);
                                }
                            }
}

static void convolution(cudnnHandle_t handle, Random &random) {
    Program &program = *Program::current();
    Numbers x = sixteenths<float>(random, images * channels * height * width);
    Numbers f = sixteenths<float>(random, maps * channels * window * window);
    Numbers dy = sixteenths<float>(random, images * maps * height * width);
    Numbers y(dy.size()), dx(x.size()), df(f.size());
    products([&](int in, int by, int out) {
        y[out] += x[in] * f[by];
        dx[in] += dy[out] * f[by];
        df[by] += dy[out] * x[in];
    });

    cudnnTensorDescriptor_t input = tensor(images, channels, height, width), output = tensor(images, maps, height, width);
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t how;
    LIBRARY_CHECK(cudnnCreateFilterDescriptor(&filter));
    LIBRARY_CHECK(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, maps, channels, window, window));
    LIBRARY_CHECK(cudnnCreateConvolutionDescriptor(&how));
    LIBRARY_CHECK(cudnnSetConvolution2dDescriptor(how, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    LIBRARY_CHECK(cudnnSetConvolutionMathType(how, CUDNN_FMA_MATH));
    DeviceArray<float> gx(x.data(), x.size()), gf(f.data(), f.size()), gdy(dy.data(), dy.size());
    DeviceArray<float> gy(y.size()), gdx(x.size()), gdf(f.size());
    DeviceArray<char> work(32 << 20);
    size_t bytes = 0;

    gy.spoil();
    const auto forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    LIBRARY_CHECK(cudnnGetConvolutionForwardWorkspaceSize(handle, input, filter, how, output, forward, &bytes));
    program.expect(bytes <= work.bytes(), "the forward convolution asks for much memory");
    LIBRARY_CHECK(cudnnConvolutionForward(handle, &one, input, gx.get(), filter, gf.get(), how, forward, work.get(),
                                          bytes, &none, output, gy.get()));
    expect_close("the convolution", downloaded(gy), y, 1e-5);
    program.digest(downloaded(gy).data(), gy.bytes());

    gdx.spoil();
    const auto to_data = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    LIBRARY_CHECK(cudnnGetConvolutionBackwardDataWorkspaceSize(handle, filter, output, how, input, to_data, &bytes));
    program.expect(bytes <= work.bytes(), "the data's gradient asks for much memory");
    LIBRARY_CHECK(cudnnConvolutionBackwardData(handle, &one, filter, gf.get(), output, gdy.get(), how, to_data,
                                               work.get(), bytes, &none, input, gdx.get()));
    expect_close("the data's gradient", downloaded(gdx), dx, 1e-5);

    gdf.spoil();
    const auto to_filter = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    LIBRARY_CHECK(cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, input, output, how, filter, to_filter, &bytes));
    program.expect(bytes <= work.bytes(), "the filter's gradient asks for much memory");
    LIBRARY_CHECK(cudnnConvolutionBackwardFilter(handle, &one, input, gx.get(), output, gdy.get(), how, to_filter,
                                                 work.get(), bytes, &none, filter, gdf.get()));
    expect_close("the filter's gradient", downloaded(gdf), df, 1e-5);

    LIBRARY_CHECK(cudnnDestroyConvolutionDescriptor(how));
    LIBRARY_CHECK(cudnnDestroyFilterDescriptor(filter));
    LIBRARY_CHECK(cudnnDestroyTensorDescriptor(output));
    LIBRARY_CHECK(cudnnDestroyTensorDescriptor(input));
}

static void pooling(cudnnHandle_t handle, Random &random) {
    const int planes = images * channels;
    Numbers x = sixteenths<float>(random, planes * height * width), want;
    for (int plane = 0; plane < planes; ++plane) {
        for (int y = 0; y < height; y += 2) {
            for (int at = 0; at < width; at += 2) {
                const float *corner = &x[(plane * height + y) * width + at];
                want.push_back(std::fmax(std::fmax(corner[0], corner[1]), std::fmax(corner[width], corner[width + 1])));
            }
        }
    }
    cudnnTensorDescriptor_t input = tensor(images, channels, height, width);
    cudnnTensorDescriptor_t output = tensor(images, channels, height / 2, width / 2);
    cudnnPoolingDescriptor_t how;
    LIBRARY_CHECK(cudnnCreatePoolingDescriptor(&how));
    LIBRARY_CHECK(cudnnSetPooling2dDescriptor(how, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
    DeviceArray<float> gx(x.data(), x.size()), gy(want.size());
    gy.spoil();
    LIBRARY_CHECK(cudnnPoolingForward(handle, how, &one, input, gx.get(), &none, output, gy.get()));
    Program::current()->expect_equal("the pooled image", downloaded(gy).data(), want.data(), want.size());
    LIBRARY_CHECK(cudnnDestroyPoolingDescriptor(how));
    LIBRARY_CHECK(cudnnDestroyTensorDescriptor(output));
    LIBRARY_CHECK(cudnnDestroyTensorDescriptor(input));
}

static void elements(cudnnHandle_t handle, Random &random) {
    const int lines = 6, classes = 50;
    Numbers x = sixteenths<float>(random, lines * classes), soft(x.size()), tanh(x.size());
    for (int line = 0; line < lines; ++line) {
        double sum = 0;
        for (int at = 0; at < classes; ++at) {
            sum += std::exp(x[line * classes + at]);
        }
        for (int at = 0; at < classes; ++at) {
            soft[line * classes + at] = static_cast<float>(std::exp(x[line * classes + at]) / sum);
            tanh[line * classes + at] = std::tanh(x[line * classes + at]);
        }
    }
    cudnnTensorDescriptor_t shape = tensor(lines, classes, 1, 1);
    DeviceArray<float> gx(x.data(), x.size()), gy(x.size());
    gy.spoil();
    LIBRARY_CHECK(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, shape, gx.get(),
                                      &none, shape, gy.get()));
    expect_close("softmax", downloaded(gy), soft, 1e-6);
    cudnnActivationDescriptor_t how;
    LIBRARY_CHECK(cudnnCreateActivationDescriptor(&how));
    LIBRARY_CHECK(cudnnSetActivationDescriptor(how, CUDNN_ACTIVATION_TANH, CUDNN_PROPAGATE_NAN, 0));
    gy.spoil();
    LIBRARY_CHECK(cudnnActivationForward(handle, how, &one, shape, gx.get(), &none, shape, gy.get()));
    expect_close("tanh", downloaded(gy), tanh, 1e-5);
    LIBRARY_CHECK(cudnnDestroyActivationDescriptor(how));
    LIBRARY_CHECK(cudnnDestroyTensorDescriptor(shape));
}

int main(int argc, char **argv) {
    Program program("cudnn", "convolution, pooling, softmax and activation by cuDNN", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        cudnnHandle_t handle;
        LIBRARY_CHECK(cudnnCreate(&handle));
        elements(handle, random);
        pooling(handle, random);
        convolution(handle, random);
        LIBRARY_CHECK(cudnnDestroy(handle));
    }
    return program.finish();
}

// cuFFT: transforms in one, two and three dimensions, of real and complex
// numbers, batched, in single and double precision, compared with the sums that
// define them, and back.

#include "library.h"

#include <cufft.h>

template <typename T> using Complex = std::complex<T>;

// The transform along the axis of `size` elements that are `stride` apart.
template <typename T>
static void transform_axis(std::vector<Complex<T>> &data, size_t size, size_t stride) {
    std::vector<Complex<double>> root(size), line(size);
    for (size_t k = 0; k < size; ++k) {
        root[k] = std::polar(1.0, -2 * M_PI * static_cast<double>(k) / static_cast<double>(size));
    }
    for (size_t start = 0; start < data.size(); ++start) {
        if (start / stride % size) {
            continue;
        }
        for (size_t k = 0; k < size; ++k) {
            line[k] = 0;
            for (size_t n = 0; n < size; ++n) {
                line[k] += Complex<double>(data[start + n * stride]) * root[k * n % size];
            }
        }
        for (size_t k = 0; k < size; ++k) {
            data[start + k * stride] = Complex<T>(line[k]);
        }
    }
}

template <typename T> static std::vector<Complex<T>> numbers(Random &random, size_t count) {
    std::vector<Complex<T>> out(count);
    for (Complex<T> &z : out) {
        z = {random.sixteenth(), random.sixteenth()};
    }
    return out;
}

static cufftResult execute(cufftHandle plan, Complex<float> *data, int way) {
    auto *at = reinterpret_cast<cufftComplex *>(data);
    return cufftExecC2C(plan, at, at, way);
}

static cufftResult execute(cufftHandle plan, Complex<double> *data, int way) {
    auto *at = reinterpret_cast<cufftDoubleComplex *>(data);
    return cufftExecZ2Z(plan, at, at, way);
}

// `batch` transforms of the sizes, slowest axis first, forth and back.
template <typename T> static void complex_transform(Random &random, std::vector<int> sizes, int batch, double tolerance) {
    size_t each = 1;
    for (int size : sizes) {
        each *= size;
    }
    std::vector<Complex<T>> input = numbers<T>(random, each * batch), want(input);
    size_t stride = each;
    for (int size : sizes) {
        stride /= size;
        transform_axis(want, size, stride);
    }
    char what[64];
    std::snprintf(what, sizeof what, "%d transforms of %zu in %zu dimensions", batch, each, sizes.size());
    DeviceArray<Complex<T>> data(input.data(), input.size());
    cufftHandle plan;
    LIBRARY_CHECK(cufftPlanMany(&plan, static_cast<int>(sizes.size()), sizes.data(), nullptr, 1, 0, nullptr, 1, 0,
                                sizeof(T) == 4 ? CUFFT_C2C : CUFFT_Z2Z, batch));
    LIBRARY_CHECK(execute(plan, data.get(), CUFFT_FORWARD));
    std::vector<Complex<T>> got = downloaded(data);
    expect_close(what, got, want, tolerance * std::sqrt(static_cast<double>(each)));
    LIBRARY_CHECK(execute(plan, data.get(), CUFFT_INVERSE));
    std::vector<Complex<T>> back = downloaded(data);
    for (Complex<T> &z : back) {
        z /= static_cast<T>(each);
    }
    expect_close(what, back, input, tolerance);
    LIBRARY_CHECK(cufftDestroy(plan));
    Program::current()->digest(got.data(), got.size() * sizeof(Complex<T>));
}

static void real_transform(Random &random, int size) {
    std::vector<float> input = sixteenths<float>(random, size);
    std::vector<Complex<float>> want(input.begin(), input.end());
    transform_axis(want, size, 1);
    want.resize(size / 2 + 1);
    DeviceArray<float> data(input.data(), input.size()), back(input.size());
    DeviceArray<Complex<float>> spectrum(want.size());
    back.spoil();
    spectrum.spoil();
    cufftHandle forth, there;
    LIBRARY_CHECK(cufftPlan1d(&forth, size, CUFFT_R2C, 1));
    LIBRARY_CHECK(cufftPlan1d(&there, size, CUFFT_C2R, 1));
    LIBRARY_CHECK(cufftExecR2C(forth, data.get(), reinterpret_cast<cufftComplex *>(spectrum.get())));
    expect_close("the transform of real numbers", downloaded(spectrum), want, 2e-6 * std::sqrt(size));
    LIBRARY_CHECK(cufftExecC2R(there, reinterpret_cast<cufftComplex *>(spectrum.get()), back.get()));
    std::vector<float> got = downloaded(back);
    for (float &number : got) {
        number /= static_cast<float>(size);
    }
    expect_close("real numbers after both transforms", got, input, 2e-6);
    LIBRARY_CHECK(cufftDestroy(forth));
    LIBRARY_CHECK(cufftDestroy(there));
}

int main(int argc, char **argv) {
    Program program("cufft", "Fourier transforms by cuFFT", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        complex_transform<float>(random, {256}, 4, 2e-6);
        complex_transform<float>(random, {105}, 2, 2e-6);
        complex_transform<float>(random, {1009}, 1, 4e-6);
        complex_transform<float>(random, {32, 48}, 1, 2e-6);
        complex_transform<float>(random, {8, 16, 12}, 2, 2e-6);
        complex_transform<double>(random, {512}, 2, 1e-14);
        real_transform(random, 400);
    }
    return program.finish();
}

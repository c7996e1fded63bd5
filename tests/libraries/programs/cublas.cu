// cuBLAS: products in single, double, complex, half, bfloat16 and 8-bit
// precision, batched and strided, vectors, and a triangular solve.

#include "library.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static const int rows = 96, columns = 80, inner = 64;

template <typename T> using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                                      int, const T *, const T *, int, const T *, int, const T *,
                                                      T *, int);

// A product of one type for plain and transposed operands.
template <typename T> static void gemm(cublasHandle_t handle, Gemm<T> call, Random &random, const char *what) {
    for (int form = 0; form < 4; ++form) {
        bool ta = form & 1, tb = form & 2;
        std::vector<T> a = sixteenths<T>(random, rows * inner), b = sixteenths<T>(random, inner * columns);
        DeviceArray<T> da(a.data(), a.size()), db(b.data(), b.size()), dc(rows * columns);
        dc.spoil();
        T one = 1, none = 0;
        LIBRARY_CHECK(call(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, rows, columns, inner,
                           &one, da.get(), ta ? inner : rows, db.get(), tb ? columns : inner, &none, dc.get(), rows));
        std::vector<T> got = downloaded(dc), want = product(a, b, rows, columns, inner, ta, tb);
        Program::current()->expect_equal(what, got.data(), want.data(), want.size());
        Program::current()->digest(got.data(), got.size() * sizeof(T));
    }
}

// A product of short numbers, summed in T.
template <typename Short, typename T>
static void short_gemm(cublasHandle_t handle, Random &random, cudaDataType_t type, cudaDataType_t result,
                       cublasComputeType_t compute, const char *what) {
    std::vector<T> a(rows * inner), b(inner * columns);
    std::vector<Short> sa(a.size()), sb(b.size());
    for (size_t at = 0; at < a.size(); ++at) {
        sa[at] = Short(a[at] = static_cast<T>(16 * random.sixteenth()));
    }
    for (size_t at = 0; at < b.size(); ++at) {
        sb[at] = Short(b[at] = static_cast<T>(16 * random.sixteenth()));
    }
    DeviceArray<Short> da(sa.data(), sa.size()), db(sb.data(), sb.size());
    DeviceArray<T> dc(rows * columns);
    dc.spoil();
    T one = 1, none = 0;
    // Transposed left, as 8-bit products want it.
    LIBRARY_CHECK(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, rows, columns, inner, &one, da.get(), type, inner,
                               db.get(), type, inner, &none, dc.get(), result, rows, compute, CUBLAS_GEMM_DEFAULT));
    std::vector<T> got = downloaded(dc), want = product(a, b, rows, columns, inner, true, false);
    Program::current()->expect_equal(what, got.data(), want.data(), want.size());
    Program::current()->digest(got.data(), got.size() * sizeof(T));
}

static void complex_gemm(cublasHandle_t handle, Random &random) {
    using Complex = std::complex<float>;
    std::vector<Complex> a(rows * inner), b(inner * columns);
    for (Complex &z : a) {
        z = {random.sixteenth(), random.sixteenth()};
    }
    for (Complex &z : b) {
        z = {random.sixteenth(), random.sixteenth()};
    }
    DeviceArray<Complex> da(a.data(), a.size()), db(b.data(), b.size()), dc(rows * columns);
    dc.spoil();
    Complex one = 1, none = 0;
    auto pointer = [](Complex *z) { return reinterpret_cast<cuComplex *>(z); };
    LIBRARY_CHECK(cublasCgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, rows, columns, inner, pointer(&one), pointer(da.get()),
                              rows, pointer(db.get()), inner, pointer(&none), pointer(dc.get()), rows));
    std::vector<Complex> got = downloaded(dc);
    expect_close("the complex product", got, product(a, b, rows, columns, inner), 1e-5);
    Program::current()->digest(got.data(), got.size() * sizeof(Complex));
}

static void strided(cublasHandle_t handle, Random &random) {
    const int batch = 5, side = 32, area = side * side;
    std::vector<float> a = sixteenths<float>(random, batch * area), b = sixteenths<float>(random, batch * area);
    DeviceArray<float> da(a.data(), a.size()), db(b.data(), b.size()), dc(a.size());
    dc.spoil();
    float one = 1, none = 0;
    LIBRARY_CHECK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &one, da.get(), side,
                                            area, db.get(), side, area, &none, dc.get(), side, area, batch));
    std::vector<float> got = downloaded(dc), want;
    for (int at = 0; at < batch; ++at) {
        std::vector<float> left(&a[at * area], &a[at * area] + area), right(&b[at * area], &b[at * area] + area);
        std::vector<float> one_product = product(left, right, side, side, side);
        want.insert(want.end(), one_product.begin(), one_product.end());
    }
    Program::current()->expect_equal("the strided products", got.data(), want.data(), want.size());
}

static void vectors(cublasHandle_t handle, Random &random) {
    Program &program = *Program::current();
    const int count = 3000;
    std::vector<float> x = sixteenths<float>(random, count), y = sixteenths<float>(random, count), want(y);
    x[1234] = -2;
    double dot = 0, squares = 0;
    for (int at = 0; at < count; ++at) {
        dot += static_cast<double>(x[at]) * y[at];
        squares += static_cast<double>(x[at]) * x[at];
    }
    DeviceArray<float> dx(x.data(), count), dy(y.data(), count);
    float got = 0;
    LIBRARY_CHECK(cublasSdot(handle, count, dx.get(), 1, dy.get(), 1, &got));
    program.expect_equal("the dot product", got, static_cast<float>(dot));
    LIBRARY_CHECK(cublasSnrm2(handle, count, dx.get(), 1, &got));
    float norm = static_cast<float>(std::sqrt(squares));
    program.expect_near("the norm", &got, &norm, 1, 1e-6, 0);
    int largest = 0;
    LIBRARY_CHECK(cublasIsamax(handle, count, dx.get(), 1, &largest));
    program.expect_equal("the place of the largest", largest, 1235);
    float two = 2;
    LIBRARY_CHECK(cublasSaxpy(handle, count, &two, dx.get(), 1, dy.get(), 1));
    for (int at = 0; at < count; ++at) {
        want[at] += 2 * x[at];
    }
    program.expect_equal("axpy", downloaded(dy).data(), want.data(), count);

    std::vector<float> a = sixteenths<float>(random, rows * inner), v = sixteenths<float>(random, inner);
    DeviceArray<float> da(a.data(), a.size()), dv(v.data(), v.size()), dr(rows);
    dr.spoil();
    float one = 1, none = 0;
    LIBRARY_CHECK(cublasSgemv(handle, CUBLAS_OP_N, rows, inner, &one, da.get(), rows, dv.get(), 1, &none, dr.get(), 1));
    program.expect_equal("gemv", downloaded(dr).data(), product(a, v, rows, 1, inner).data(), rows);
}

// A X = B for a lower triangle A.
static void triangle(cublasHandle_t handle, Random &random) {
    const int side = 48, right = 20;
    std::vector<double> a(side * side), x = sixteenths<double>(random, side * right);
    for (int column = 0; column < side; ++column) {
        for (int row = column; row < side; ++row) {
            a[column * side + row] = row == column ? 2 : random.sixteenth() / 8;
        }
    }
    std::vector<double> b = product(a, x, side, right, side);
    DeviceArray<double> da(a.data(), a.size()), db(b.data(), b.size());
    double one = 1;
    LIBRARY_CHECK(cublasDtrsm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, side,
                              right, &one, da.get(), side, db.get(), side));
    expect_close("the triangular solve", downloaded(db), x, 1e-10);
}

int main(int argc, char **argv) {
    Program program("cublas", "products, vectors and solves by cuBLAS", "unused", 1, 1, 1);
    bool integers = false;
    program.add_flag("--integers", &integers, "8-bit products alone");
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        cublasHandle_t handle;
        LIBRARY_CHECK(cublasCreate(&handle));
        if (integers) {
            short_gemm<int8_t, int>(handle, random, CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, "the 8-bit product");
            LIBRARY_CHECK(cublasDestroy(handle));
            continue;
        }
        gemm<float>(handle, cublasSgemm, random, "the single product");
        gemm<double>(handle, cublasDgemm, random, "the double product");
        complex_gemm(handle, random);
        short_gemm<__half, float>(handle, random, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, "the half product");
        short_gemm<__nv_bfloat16, float>(handle, random, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F,
                                         "the bfloat16 product");
        strided(handle, random);
        vectors(handle, random);
        triangle(handle, random);
        LIBRARY_CHECK(cublasDestroy(handle));
    }
    return program.finish();
}

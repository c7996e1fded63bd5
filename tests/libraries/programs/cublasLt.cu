// cuBLASLt: products chosen by the heuristic, with a bias, ReLU and GELU behind
// them, in single, half and bfloat16 precision.

#include "library.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static const int rows = 64, columns = 48, inner = 96;

// The description of one product, and what it holds.
struct Product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;

    Product(cudaDataType_t type, cublasLtEpilogue_t epilogue, const void *bias) {
        cublasOperation_t transposed = CUBLAS_OP_T;
        LIBRARY_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        if (bias) {
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        }
        LIBRARY_CHECK(cublasLtMatrixLayoutCreate(&a, type, inner, rows, inner));
        LIBRARY_CHECK(cublasLtMatrixLayoutCreate(&b, type, inner, columns, inner));
        LIBRARY_CHECK(cublasLtMatrixLayoutCreate(&c, type, rows, columns, rows));
        LIBRARY_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    }

    ~Product() {
        LIBRARY_CHECK(cublasLtMatmulPreferenceDestroy(preference));
        LIBRARY_CHECK(cublasLtMatrixLayoutDestroy(c));
        LIBRARY_CHECK(cublasLtMatrixLayoutDestroy(b));
        LIBRARY_CHECK(cublasLtMatrixLayoutDestroy(a));
        LIBRARY_CHECK(cublasLtMatmulDescDestroy(operation));
    }

    template <typename T> void set(cublasLtMatmulDescAttributes_t attribute, const T &value) {
        LIBRARY_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
    }
};

// Multiplies with each algorithm that the heuristic offers, up to four.
template <typename T>
static void multiply(cublasLtHandle_t handle, Random &random, cudaDataType_t type, cublasLtEpilogue_t epilogue,
                     double tolerance, const char *what) {
    Program &program = *Program::current();
    std::vector<float> fa = sixteenths<float>(random, rows * inner), fb = sixteenths<float>(random, inner * columns);
    std::vector<float> fbias = sixteenths<float>(random, rows);
    std::vector<T> a(fa.begin(), fa.end()), b(fb.begin(), fb.end()), bias(fbias.begin(), fbias.end());
    std::vector<float> want = product(fa, fb, rows, columns, inner, true, false);
    bool biased = epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_RELU;
    for (size_t at = 0; at < want.size(); ++at) {
        float sum = want[at] + (biased ? fbias[at % rows] : 0);
        if (epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
            sum = std::fmax(sum, 0.0f);
        } else if (epilogue == CUBLASLT_EPILOGUE_GELU_BIAS) {
            double cube = sum + 0.044715 * std::pow(sum, 3);
            sum = static_cast<float>(0.5 * sum * (1 + std::tanh(std::sqrt(2 / M_PI) * cube)));
        }
        want[at] = sum;
    }
    DeviceArray<T> da(a.data(), a.size()), db(b.data(), b.size()), dbias(bias.data(), bias.size());
    DeviceArray<T> dc(want.size());
    DeviceArray<char> workspace(4 << 20);
    Product shape(type, epilogue, biased ? dbias.get() : nullptr);
    size_t bytes = workspace.bytes();
    LIBRARY_CHECK(cublasLtMatmulPreferenceSetAttribute(shape.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t found[4];
    int offered = 0;
    LIBRARY_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, shape.operation, shape.a, shape.b, shape.c, shape.c,
                                                 shape.preference, 4, found, &offered));
    program.expect(offered > 0, "the heuristic offers nothing");
    float one = 1, none = 0;
    for (int at = 0; at < offered; ++at) {
        dc.spoil();
        LIBRARY_CHECK(cublasLtMatmul(handle, shape.operation, &one, da.get(), shape.a, db.get(), shape.b, &none,
                                     dc.get(), shape.c, dc.get(), shape.c, &found[at].algo, workspace.get(),
                                     workspace.bytes(), nullptr));
        std::vector<float> got = as_floats(downloaded(dc));
        expect_close(what, got, want, tolerance);
        program.digest(got.data(), got.size() * sizeof(float));
    }
}

int main(int argc, char **argv) {
    Program program("cublasLt", "products by cuBLASLt", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        cublasLtHandle_t handle;
        LIBRARY_CHECK(cublasLtCreate(&handle));
        multiply<float>(handle, random, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1e-6, "the single product");
        multiply<float>(handle, random, CUDA_R_32F, CUBLASLT_EPILOGUE_RELU_BIAS, 1e-6, "the single product, bias, ReLU");
        multiply<float>(handle, random, CUDA_R_32F, CUBLASLT_EPILOGUE_GELU_BIAS, 1e-3, "the single product, bias, GELU");
        multiply<__half>(handle, random, CUDA_R_16F, CUBLASLT_EPILOGUE_DEFAULT, 1e-3, "the half product");
        multiply<__half>(handle, random, CUDA_R_16F, CUBLASLT_EPILOGUE_BIAS, 1e-3, "the half product, bias");
        multiply<__nv_bfloat16>(handle, random, CUDA_R_16BF, CUBLASLT_EPILOGUE_RELU, 8e-3, "the bfloat16 product, ReLU");
        LIBRARY_CHECK(cublasLtDestroy(handle));
    }
    return program.finish();
}

// cuSPARSE: products of a sparse matrix with a vector, with a dense matrix and with
// a sparse one, and conversions between formats.

#include "library.h"

#include <cusparse.h>

static const int rows = 120, columns = 90, others = 16;
// Of the product of sparse matrices: its kernels need several blocks.
static const int outer = 200, inner = 150, times = 8;

// A matrix by compressed rows.
struct Sparse {
    int rows, columns;
    std::vector<int> starts, places;
    std::vector<float> values;

    Sparse(int rows, int columns) : rows(rows), columns(columns), starts(1) {}

    static Sparse random(Random &random, int rows, int columns) {
        Sparse matrix(rows, columns);
        for (int row = 0; row < rows; ++row) {
            for (int column = 0; column < columns; ++column) {
                if (random.below(100) < 7) {
                    matrix.places.push_back(column);
                    matrix.values.push_back(random.sixteenth());
                }
            }
            matrix.starts.push_back(static_cast<int>(matrix.places.size()));
        }
        return matrix;
    }

    // Whether its indices are those of `entries` different elements.
    bool is_valid(int64_t entries) const {
        std::vector<int> seen(columns, -1);
        if (starts.front() != 0 || starts.back() != entries) {
            return false;
        }
        for (int row = 0; row < rows; ++row) {
            if (starts[row] > starts[row + 1] || starts[row + 1] > entries) {
                return false;
            }
            for (int at = starts[row]; at < starts[row + 1]; ++at) {
                int place = places[at];
                if (place < 0 || place >= columns || seen[place] == row) {
                    return false;
                }
                seen[place] = row;
            }
        }
        return true;
    }

    // By columns.
    std::vector<float> dense() const {
        std::vector<float> out(static_cast<size_t>(rows) * columns);
        for (int row = 0; row < rows; ++row) {
            for (int at = starts[row]; at < starts[row + 1]; ++at) {
                out[static_cast<size_t>(places[at]) * rows + row] += values[at];
            }
        }
        return out;
    }
};

// The matrix on the device.
struct OnDevice {
    DeviceArray<int> starts, places;
    DeviceArray<float> values;
    cusparseSpMatDescr_t descriptor;

    explicit OnDevice(const Sparse &matrix)
        : starts(matrix.starts.data(), matrix.starts.size()), places(matrix.places.data(), matrix.places.size()),
          values(matrix.values.data(), matrix.values.size()) {
        LIBRARY_CHECK(cusparseCreateCsr(&descriptor, matrix.rows, matrix.columns,
                                        static_cast<int64_t>(matrix.values.size()), starts.get(), places.get(),
                                        values.get(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                                        CUDA_R_32F));
    }
    ~OnDevice() { LIBRARY_CHECK(cusparseDestroySpMat(descriptor)); }
};

static const float one = 1, none = 0;

static void with_vector(cusparseHandle_t handle, const Sparse &matrix, OnDevice &device, Random &random,
                        cusparseSpMVAlg_t algorithm) {
    std::vector<float> x = sixteenths<float>(random, columns);
    DeviceArray<float> dx(x.data(), x.size()), dy(rows);
    dy.spoil();
    cusparseDnVecDescr_t vx, vy;
    LIBRARY_CHECK(cusparseCreateDnVec(&vx, columns, dx.get(), CUDA_R_32F));
    LIBRARY_CHECK(cusparseCreateDnVec(&vy, rows, dy.get(), CUDA_R_32F));
    size_t bytes = 0;
    LIBRARY_CHECK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, device.descriptor, vx, &none,
                                          vy, CUDA_R_32F, algorithm, &bytes));
    DeviceArray<char> buffer(bytes + 1);
    LIBRARY_CHECK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, device.descriptor, vx, &none, vy,
                               CUDA_R_32F, algorithm, buffer.get()));
    std::vector<float> got = downloaded(dy), want = product(matrix.dense(), x, rows, 1, columns);
    Program::current()->expect_equal("the product with a vector", got.data(), want.data(), rows);
    Program::current()->digest(got.data(), rows * sizeof(float));
    LIBRARY_CHECK(cusparseDestroyDnVec(vx));
    LIBRARY_CHECK(cusparseDestroyDnVec(vy));
}

static void with_matrix(cusparseHandle_t handle, const Sparse &matrix, OnDevice &device, Random &random) {
    std::vector<float> b = sixteenths<float>(random, columns * others);
    DeviceArray<float> db(b.data(), b.size()), dc(rows * others);
    dc.spoil();
    cusparseDnMatDescr_t mb, mc;
    LIBRARY_CHECK(cusparseCreateDnMat(&mb, columns, others, columns, db.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));
    LIBRARY_CHECK(cusparseCreateDnMat(&mc, rows, others, rows, dc.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));
    const cusparseOperation_t plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
    size_t bytes = 0;
    LIBRARY_CHECK(cusparseSpMM_bufferSize(handle, plain, plain, &one, device.descriptor, mb, &none, mc, CUDA_R_32F,
                                          CUSPARSE_SPMM_ALG_DEFAULT, &bytes));
    DeviceArray<char> buffer(bytes + 1);
    LIBRARY_CHECK(cusparseSpMM(handle, plain, plain, &one, device.descriptor, mb, &none, mc, CUDA_R_32F,
                               CUSPARSE_SPMM_ALG_DEFAULT, buffer.get()));
    std::vector<float> got = downloaded(dc), want = product(matrix.dense(), b, rows, others, columns);
    Program::current()->expect_equal("the product with a matrix", got.data(), want.data(), want.size());
    Program::current()->digest(got.data(), got.size() * sizeof(float));
    LIBRARY_CHECK(cusparseDestroyDnMat(mb));
    LIBRARY_CHECK(cusparseDestroyDnMat(mc));
}

static void to_dense(cusparseHandle_t handle, const Sparse &matrix, OnDevice &device) {
    DeviceArray<float> dense(rows * columns);
    dense.spoil();
    cusparseDnMatDescr_t description;
    LIBRARY_CHECK(cusparseCreateDnMat(&description, rows, columns, rows, dense.get(), CUDA_R_32F, CUSPARSE_ORDER_COL));
    size_t bytes = 0;
    LIBRARY_CHECK(cusparseSparseToDense_bufferSize(handle, device.descriptor, description,
                                                   CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &bytes));
    DeviceArray<char> buffer(bytes + 1);
    LIBRARY_CHECK(cusparseSparseToDense(handle, device.descriptor, description, CUSPARSE_SPARSETODENSE_ALG_DEFAULT,
                                        buffer.get()));
    Program::current()->expect_equal("the dense matrix", downloaded(dense).data(), matrix.dense().data(),
                                     dense.count());
    LIBRARY_CHECK(cusparseDestroyDnMat(description));
}

// Compressed columns of the matrix, which are compressed rows of its transpose.
static void to_columns(cusparseHandle_t handle, const Sparse &matrix, OnDevice &device) {
    size_t entries = matrix.values.size(), bytes = 0;
    DeviceArray<float> values(entries);
    DeviceArray<int> starts(columns + 1), places(entries);
    values.spoil();
    places.spoil();
    int number = static_cast<int>(entries);
    LIBRARY_CHECK(cusparseCsr2cscEx2_bufferSize(handle, rows, columns, number, device.values.get(), device.starts.get(),
                                                device.places.get(), values.get(), starts.get(), places.get(),
                                                CUDA_R_32F, CUSPARSE_ACTION_NUMERIC, CUSPARSE_INDEX_BASE_ZERO,
                                                CUSPARSE_CSR2CSC_ALG1, &bytes));
    DeviceArray<char> buffer(bytes + 1);
    LIBRARY_CHECK(cusparseCsr2cscEx2(handle, rows, columns, number, device.values.get(), device.starts.get(),
                                     device.places.get(), values.get(), starts.get(), places.get(), CUDA_R_32F,
                                     CUSPARSE_ACTION_NUMERIC, CUSPARSE_INDEX_BASE_ZERO, CUSPARSE_CSR2CSC_ALG1,
                                     buffer.get()));
    Sparse transposed(columns, rows);
    transposed.starts = downloaded(starts);
    transposed.places = downloaded(places);
    transposed.values = downloaded(values);
    std::vector<float> got = transposed.dense(), want = matrix.dense();
    for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
            Program::current()->expect_equal("an element by columns", got[row * columns + column],
                                             want[column * rows + row]);
        }
    }
}

// The product of two sparse matrices, several times. Blocks of its kernels pass
// partial results to each other by vectors of 16 bytes, a value and its state.
static void with_sparse(cusparseHandle_t handle, Random &random) {
    Sparse a = Sparse::random(random, outer, inner), b = Sparse::random(random, inner, outer);
    std::vector<float> want = product(a.dense(), b.dense(), outer, outer, inner);
    OnDevice da(a), db(b);
    const cusparseOperation_t plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
    const cusparseSpGEMMAlg_t algorithm = CUSPARSE_SPGEMM_DEFAULT;
    for (int time = 0; time < times; ++time) {
        cusparseSpMatDescr_t dc;
        LIBRARY_CHECK(cusparseCreateCsr(&dc, outer, outer, 0, nullptr, nullptr, nullptr, CUSPARSE_INDEX_32I,
                                        CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
        cusparseSpGEMMDescr_t work;
        LIBRARY_CHECK(cusparseSpGEMM_createDescr(&work));
        size_t first = 0, second = 0;
        LIBRARY_CHECK(cusparseSpGEMM_workEstimation(handle, plain, plain, &one, da.descriptor, db.descriptor, &none, dc,
                                                    CUDA_R_32F, algorithm, work, &first, nullptr));
        DeviceArray<char> estimation(first + 1);
        LIBRARY_CHECK(cusparseSpGEMM_workEstimation(handle, plain, plain, &one, da.descriptor, db.descriptor, &none, dc,
                                                    CUDA_R_32F, algorithm, work, &first, estimation.get()));
        LIBRARY_CHECK(cusparseSpGEMM_compute(handle, plain, plain, &one, da.descriptor, db.descriptor, &none, dc,
                                             CUDA_R_32F, algorithm, work, &second, nullptr));
        DeviceArray<char> computation(second + 1);
        LIBRARY_CHECK(cusparseSpGEMM_compute(handle, plain, plain, &one, da.descriptor, db.descriptor, &none, dc,
                                             CUDA_R_32F, algorithm, work, &second, computation.get()));
        int64_t height, width, entries;
        LIBRARY_CHECK(cusparseSpMatGetSize(dc, &height, &width, &entries));
        DeviceArray<int> starts(outer + 1), places(entries + 1);
        DeviceArray<float> values(entries + 1);
        starts.spoil();
        places.spoil();
        values.spoil();
        LIBRARY_CHECK(cusparseCsrSetPointers(dc, starts.get(), places.get(), values.get()));
        LIBRARY_CHECK(cusparseSpGEMM_copy(handle, plain, plain, &one, da.descriptor, db.descriptor, &none, dc,
                                          CUDA_R_32F, algorithm, work));
        LIBRARY_CHECK(cusparseSpGEMM_destroyDescr(work));
        LIBRARY_CHECK(cusparseDestroySpMat(dc));
        Sparse c(outer, outer);
        c.starts = downloaded(starts);
        c.places = downloaded(places);
        c.values = downloaded(values);
        if (!c.is_valid(entries)) {
            Program::current()->fail("the product of sparse matrices has invalid or duplicate indices");
            continue;
        }
        std::vector<float> got = c.dense();
        Program::current()->expect_equal("the product of sparse matrices", got.data(), want.data(), want.size());
        Program::current()->digest(got.data(), got.size() * sizeof(float));
    }
}

int main(int argc, char **argv) {
    Program program("cusparse", "sparse matrices by cuSPARSE", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        Sparse matrix = Sparse::random(random, rows, columns);
        cusparseHandle_t handle;
        LIBRARY_CHECK(cusparseCreate(&handle));
        {
            OnDevice device(matrix);
            with_vector(handle, matrix, device, random, CUSPARSE_SPMV_CSR_ALG1);
            with_vector(handle, matrix, device, random, CUSPARSE_SPMV_CSR_ALG2);
            with_matrix(handle, matrix, device, random);
            to_dense(handle, matrix, device);
            to_columns(handle, matrix, device);
        }
        with_sparse(handle, random);
        LIBRARY_CHECK(cusparseDestroy(handle));
    }
    return program.finish();
}

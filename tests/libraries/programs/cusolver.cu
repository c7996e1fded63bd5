// cuSOLVER: systems of equations by LU and Cholesky factors, QR factors, the
// eigenvalues of a symmetric matrix, and singular values.

#include "library.h"

#include <cusolverDn.h>

static const int side = 40, right = 3;

using Matrix = std::vector<double>;

// A symmetric matrix whose eigenvalues are positive.
static Matrix positive(Random &random) {
    Matrix half = sixteenths<double>(random, side * side), matrix = product(half, half, side, side, side, true, false);
    for (int at = 0; at < side; ++at) {
        matrix[at * side + at] += side;
    }
    return matrix;
}

static void succeeded(const DeviceArray<int> &info, const char *what) {
    Program::current()->expect_equal(what, downloaded(info)[0], 0);
}

static void lu(cusolverDnHandle_t handle, Random &random) {
    Matrix a = sixteenths<double>(random, side * side), x = sixteenths<double>(random, side * right);
    Matrix b = product(a, x, side, right, side);
    DeviceArray<double> da(a.data(), a.size()), db(b.data(), b.size());
    DeviceArray<int> pivots(side), info(1);
    info.spoil();
    int size = 0;
    LIBRARY_CHECK(cusolverDnDgetrf_bufferSize(handle, side, side, da.get(), side, &size));
    DeviceArray<double> work(size + 1);
    LIBRARY_CHECK(cusolverDnDgetrf(handle, side, side, da.get(), side, work.get(), pivots.get(), info.get()));
    succeeded(info, "LU factors");
    LIBRARY_CHECK(cusolverDnDgetrs(handle, CUBLAS_OP_N, side, right, da.get(), side, pivots.get(), db.get(), side,
                                   info.get()));
    succeeded(info, "the solution by LU factors");
    expect_close("the solution by LU factors", downloaded(db), x, 1e-9);
}

static void cholesky(cusolverDnHandle_t handle, Random &random) {
    Matrix a = positive(random), x = sixteenths<double>(random, side * right), b = product(a, x, side, right, side);
    DeviceArray<double> da(a.data(), a.size()), db(b.data(), b.size());
    DeviceArray<int> info(1);
    info.spoil();
    int size = 0;
    const cublasFillMode_t lower = CUBLAS_FILL_MODE_LOWER;
    LIBRARY_CHECK(cusolverDnDpotrf_bufferSize(handle, lower, side, da.get(), side, &size));
    DeviceArray<double> work(size + 1);
    LIBRARY_CHECK(cusolverDnDpotrf(handle, lower, side, da.get(), side, work.get(), size, info.get()));
    succeeded(info, "Cholesky factors");
    LIBRARY_CHECK(cusolverDnDpotrs(handle, lower, side, right, da.get(), side, db.get(), side, info.get()));
    succeeded(info, "the solution by Cholesky factors");
    expect_close("the solution by Cholesky factors", downloaded(db), x, 1e-10);
}

static void qr(cusolverDnHandle_t handle, Random &random) {
    Matrix a = sixteenths<double>(random, side * side);
    DeviceArray<double> da(a.data(), a.size()), tau(side);
    DeviceArray<int> info(1);
    info.spoil();
    int size = 0, more = 0;
    LIBRARY_CHECK(cusolverDnDgeqrf_bufferSize(handle, side, side, da.get(), side, &size));
    LIBRARY_CHECK(cusolverDnDorgqr_bufferSize(handle, side, side, side, da.get(), side, tau.get(), &more));
    DeviceArray<double> work(std::max(size, more) + 1);
    LIBRARY_CHECK(cusolverDnDgeqrf(handle, side, side, da.get(), side, tau.get(), work.get(), size, info.get()));
    succeeded(info, "QR factors");
    Matrix r = downloaded(da);
    for (int column = 0; column < side; ++column) {
        for (int row = column + 1; row < side; ++row) {
            r[column * side + row] = 0;
        }
    }
    LIBRARY_CHECK(cusolverDnDorgqr(handle, side, side, side, da.get(), side, tau.get(), work.get(), more, info.get()));
    succeeded(info, "Q of QR factors");
    expect_close("Q R", product(downloaded(da), r, side, side, side), a, 1e-12);
}

// A V = V diag(w), and w ascends.
static void eigenvalues(cusolverDnHandle_t handle, Random &random) {
    Matrix a = positive(random);
    DeviceArray<double> da(a.data(), a.size()), dw(side);
    DeviceArray<int> info(1);
    info.spoil();
    dw.spoil();
    int size = 0;
    LIBRARY_CHECK(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, side, da.get(),
                                              side, dw.get(), &size));
    DeviceArray<double> work(size + 1);
    LIBRARY_CHECK(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, side, da.get(), side,
                                   dw.get(), work.get(), size, info.get()));
    succeeded(info, "eigenvalues");
    Matrix v = downloaded(da), w = downloaded(dw), scaled(v);
    for (int column = 0; column < side; ++column) {
        Program::current()->expect(column == 0 || w[column - 1] <= w[column], "eigenvalues do not ascend");
        for (int row = 0; row < side; ++row) {
            scaled[column * side + row] *= w[column];
        }
    }
    expect_close("A V", product(a, v, side, side, side), scaled, 1e-10);
    Program::current()->digest(w.data(), w.size() * sizeof(double));
}

// U diag(s) V' = A, and s descends.
static void singular_values(cusolverDnHandle_t handle, Random &random) {
    const int tall = side + 8;
    Matrix a = sixteenths<double>(random, tall * side);
    DeviceArray<double> da(a.data(), a.size()), ds(side), du(tall * tall), dv(side * side), rest(side);
    DeviceArray<int> info(1);
    info.spoil();
    ds.spoil();
    int size = 0;
    LIBRARY_CHECK(cusolverDnDgesvd_bufferSize(handle, tall, side, &size));
    DeviceArray<double> work(size + 1);
    LIBRARY_CHECK(cusolverDnDgesvd(handle, 'A', 'A', tall, side, da.get(), tall, ds.get(), du.get(), tall, dv.get(),
                                   side, work.get(), size, rest.get(), info.get()));
    succeeded(info, "singular values");
    Matrix u = downloaded(du), s = downloaded(ds);
    u.resize(tall * side);
    for (int column = 0; column < side; ++column) {
        Program::current()->expect(column == 0 || s[column - 1] >= s[column], "singular values do not descend");
        for (int row = 0; row < tall; ++row) {
            u[column * tall + row] *= s[column];
        }
    }
    expect_close("U S V'", product(u, downloaded(dv), tall, side, side), a, 1e-12);
    Program::current()->digest(s.data(), s.size() * sizeof(double));
}

int main(int argc, char **argv) {
    Program program("cusolver", "factors and equations by cuSOLVER", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        Random random(program.seed());
        cusolverDnHandle_t handle;
        LIBRARY_CHECK(cusolverDnCreate(&handle));
        lu(handle, random);
        cholesky(handle, random);
        qr(handle, random);
        eigenvalues(handle, random);
        singular_values(handle, random);
        LIBRARY_CHECK(cusolverDnDestroy(handle));
    }
    return program.finish();
}

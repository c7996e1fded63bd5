//! Names and sentences of results (CUDA Driver API, Error Handling).

/// The name of a result.
#[since(6000)]
#[before_init]
fn cuGetErrorName(error: CUresult, name: Out<*const c_char>);

/// The description of a result.
#[since(6000)]
#[before_init]
fn cuGetErrorString(error: CUresult, text: Out<*const c_char>);

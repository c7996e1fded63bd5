//! Names and descriptions of result codes (CUDA Driver API, Error Handling).

/// Returns the name of a result code.
#[since(6000)]
#[before_init]
fn cuGetErrorName(error: CUresult, name: Out<*const c_char>);

/// Returns the description of a result code.
#[since(6000)]
#[before_init]
fn cuGetErrorString(error: CUresult, text: Out<*const c_char>);

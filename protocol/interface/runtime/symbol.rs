//! Variables of device code (CUDA Runtime API, chapter "Memory Management").

fn cudaGetSymbolAddress(address: Out<*mut c_void>, symbol: *const c_void);

fn cudaGetSymbolSize(size: Out<usize>, symbol: *const c_void);

#[per_thread(ptds)]
#[default_stream]
#[through(copy_to(symbol, from, (size, offset), kind, now(stream)))]
fn cudaMemcpyToSymbol(
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(copy_to(symbol, from, (size, offset), kind, Timing::Later(stream)))]
fn cudaMemcpyToSymbolAsync(
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(copy_from(to, symbol, (size, offset), kind, now(stream)))]
fn cudaMemcpyFromSymbol(
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(copy_from(to, symbol, (size, offset), kind, Timing::Later(stream)))]
fn cudaMemcpyFromSymbolAsync(
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
    stream: DefaultStream,
);

//! The log of errors (CUDA Driver API, Error Log Management).

/// The place of the next message.
#[since(12090)]
#[before_init]
fn cuLogsCurrent(iterator: Out<CUlogIterator>, flags: c_uint);

/// Appends messages to a file.
#[since(12090)]
#[before_init]
fn cuLogsDumpToFile(iterator: *mut CUlogIterator, path: Text, flags: c_uint);

/// Writes messages into memory, the newest where not all fit.
#[since(12090)]
#[before_init]
fn cuLogsDumpToMemory(
    iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
);

/// Calls back with each message from now on.
#[since(12090)]
#[before_init]
fn cuLogsRegisterCallback(
    callback: CUlogsCallback,
    data: *mut c_void,
    handle: Out<CUlogsCallbackHandle>,
);

/// Calls back no more.
#[since(12090)]
#[before_init]
fn cuLogsUnregisterCallback(handle: CUlogsCallbackHandle);

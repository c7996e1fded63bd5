//! The error log (CUDA Driver API, Error Log Management).

/// Returns the log's current position.
#[since(12090)]
#[before_init]
fn cuLogsCurrent(iterator: Out<CUlogIterator>, flags: c_uint);

/// Appends log messages to a file.
#[since(12090)]
#[before_init]
fn cuLogsDumpToFile(iterator: *mut CUlogIterator, path: Text, flags: c_uint);

/// Writes log messages to memory; if they do not fit, only the newest.
#[since(12090)]
#[before_init]
fn cuLogsDumpToMemory(
    iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
);

/// Registers a callback for new log messages.
#[since(12090)]
#[before_init]
fn cuLogsRegisterCallback(
    callback: CUlogsCallback,
    data: *mut c_void,
    handle: Out<CUlogsCallbackHandle>,
);

/// Removes a callback for log messages.
#[since(12090)]
#[before_init]
fn cuLogsUnregisterCallback(handle: CUlogsCallbackHandle);

//! Logs.

#[since(12090)]
#[refused("not built yet")]
fn cuLogsCurrent(iterator_out: Out<CUlogIterator>, flags: c_uint);

#[since(12090)]
#[refused("not built yet")]
fn cuLogsDumpToFile(iterator: Out<CUlogIterator>, path_to_file: Text, flags: c_uint);

#[since(12090)]
#[refused("not built yet")]
fn cuLogsDumpToMemory(
    iterator: Out<CUlogIterator>,
    buffer: *mut c_char,
    size: Out<usize>,
    flags: c_uint,
);

#[since(12090)]
#[refused("not built yet")]
fn cuLogsRegisterCallback(
    callback_func: CUlogsCallback,
    user_data: *mut c_void,
    callback_out: Out<CUlogsCallbackHandle>,
);

#[since(12090)]
#[refused("not built yet")]
fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle);

//! Giving up what a worker does not need once its GPU is open (D8).

/// Called after the GPU is open and before the first byte of a guest is read.
///
/// Takes away gaining privileges by starting programs. The daemon starts the
/// worker as the user it is to be; a system-call filter belongs here too, and
/// is not set: the driver's own needs differ from version to version.
pub fn confine() {
    if let Err(errno) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%errno, "cannot set no_new_privs");
    }
}

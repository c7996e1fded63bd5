//! Eager loading of kernels (`CUDA_MODULE_LOADING=EAGER`).

use paragpu_client::Session;
use paragpu_client::module::Module;

use crate::settings::settings;

/// Looks up the kernels of a module that was just loaded, if the program chose eager loading.
/// Their first launches then do not wait for host functions.
pub fn load_kernels(session: &Session, module: &Module) {
    if settings().eager_loading {
        // A kernel that is still unknown fails at its first use.
        let _ = session.modules().load_functions(module);
    }
}

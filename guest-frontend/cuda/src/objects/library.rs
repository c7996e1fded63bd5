//! Libraries and their kernels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_client::module::Module;
use paragpu_client::{Result, Session};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::sys::unsupported_use;

/// A library: an image that is loaded into each session that uses it.
#[derive(Debug)]
pub struct Library {
    image: Vec<u8>,
    options: Vec<(u32, u32)>,
    /// The module in each session that uses the library.
    modules: Mutex<Modules>,
    /// Handles of the kernels looked up so far.
    kernels: Mutex<HashMap<String, u64>>,
    /// Handles of the modules.
    module_handles: Mutex<HashMap<u32, u64>>,
}

/// Modules of a library by session.
#[derive(Debug, Default)]
struct Modules {
    loaded: HashMap<u32, Arc<Module>>,
    /// The session that has the library's managed variables. In another session
    /// they would be separate variables, which CUDA programs do not expect.
    managed_in: Option<u32>,
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    /// Its library.
    pub library: Arc<Library>,
    /// The library's handle.
    pub library_handle: u64,
    /// Its mangled name.
    pub name: String,
    /// Handle of the function in each session that uses the kernel; 0 for
    /// none yet.
    functions: [AtomicU64; MAX_DEVICES as usize],
}

fn of_one_device() -> Status {
    unsupported_use!(
        "__managed__ variables on more than one device",
        "such a variable is memory of the device that loaded its library first"
    )
}

impl Library {
    /// A library of this image, which `session` has loaded already.
    pub fn new(
        image: &[u8],
        options: &[(u32, u32)],
        session: &Session,
        module: Arc<Module>,
    ) -> Self {
        Self {
            image: image.to_vec(),
            options: options.to_vec(),
            modules: Mutex::new(Modules {
                loaded: HashMap::from([(session.ordinal(), module)]),
                managed_in: None,
            }),
            kernels: Mutex::default(),
            module_handles: Mutex::default(),
        }
    }

    /// The module in a session, loaded at the first use.
    ///
    /// # Errors
    /// As [`Modules::load`](paragpu_client::module::Modules::load); `NOT_SUPPORTED` if
    /// another device has the library's managed variables.
    pub fn module(&self, session: &Session) -> Result<Arc<Module>> {
        // The lock is held during the load, so that a session loads the image once.
        let mut modules = self.modules.lock();
        let ordinal = session.ordinal();
        if let Some(module) = modules.loaded.get(&ordinal) {
            return Ok(Arc::clone(module));
        }
        if modules.managed_in.is_some_and(|other| other != ordinal) {
            return Err(of_one_device());
        }
        let loaded = session.modules().load(&self.image, &self.options)?;
        modules.loaded.insert(ordinal, Arc::clone(&loaded));
        Ok(loaded)
    }

    /// As [`module`](Self::module), for use of the library's managed variables.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if other devices have loaded the library too.
    pub fn module_with_managed(&self, session: &Session) -> Result<Arc<Module>> {
        let module = self.module(session)?;
        let mut modules = self.modules.lock();
        if modules.loaded.len() > 1 {
            return Err(of_one_device());
        }
        modules.managed_in = Some(session.ordinal());
        Ok(module)
    }

    /// Removes a session's module, if it has one.
    pub fn forget(&self, ordinal: u32) -> Option<Arc<Module>> {
        self.module_handles.lock().remove(&ordinal);
        let mut modules = self.modules.lock();
        if modules.managed_in == Some(ordinal) {
            modules.managed_in = None;
        }
        modules.loaded.remove(&ordinal)
    }

    /// Takes its modules by session.
    pub fn take_modules(&self) -> HashMap<u32, Arc<Module>> {
        std::mem::take(&mut *self.modules.lock()).loaded
    }

    /// Handles of its modules.
    pub fn module_handles(&self) -> Vec<u64> {
        self.module_handles.lock().values().copied().collect()
    }

    /// Handle of its module in a session; `make` creates it at the first use.
    pub fn module_handle(&self, ordinal: u32, make: impl FnOnce() -> u64) -> u64 {
        *self
            .module_handles
            .lock()
            .entry(ordinal)
            .or_insert_with(make)
    }

    /// Handle of a kernel that was looked up before.
    pub fn known_kernel(&self, name: &str) -> Option<u64> {
        self.kernels.lock().get(name).copied()
    }

    /// Handle of a kernel; `make` creates it at the first use.
    pub fn kernel(&self, name: &str, make: impl FnOnce() -> u64) -> u64 {
        *self
            .kernels
            .lock()
            .entry(name.to_owned())
            .or_insert_with(make)
    }
}

impl Kernel {
    /// A kernel that no session uses yet.
    pub fn new(library: Arc<Library>, library_handle: u64, name: &str) -> Self {
        Self {
            library,
            library_handle,
            name: name.to_owned(),
            functions: [const { AtomicU64::new(0) }; MAX_DEVICES as usize],
        }
    }

    /// Handle of the function in a session; 0 for none yet.
    pub fn function(&self, ordinal: u32) -> u64 {
        let slot = self.functions.get(ordinal as usize);
        slot.map_or(0, |slot| slot.load(Ordering::Acquire))
    }

    /// Sets the handle of the function in a session; 0 if it is gone.
    pub fn set_function(&self, ordinal: u32, handle: u64) {
        if let Some(slot) = self.functions.get(ordinal as usize) {
            slot.store(handle, Ordering::Release);
        }
    }
}

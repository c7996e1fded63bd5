//! Libraries and their kernels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_client::module::Module;
use paragpu_client::{Result, Session};
use paragpu_protocol::layout::MAX_DEVICES;
use parking_lot::Mutex;

/// A library: an image that is loaded into each session that uses it.
#[derive(Debug)]
pub struct Library {
    image: Vec<u8>,
    options: Vec<(u32, u32)>,
    /// The module in each session that uses the library.
    modules: Mutex<HashMap<u32, Arc<Module>>>,
    /// Handles of the kernels asked for.
    kernels: Mutex<HashMap<String, u64>>,
    /// Handles of the modules.
    module_handles: Mutex<HashMap<u32, u64>>,
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
            modules: Mutex::new(HashMap::from([(session.ordinal(), module)])),
            kernels: Mutex::default(),
            module_handles: Mutex::default(),
        }
    }

    /// The module in a session, loaded at the first use.
    ///
    /// # Errors
    /// As [`Modules::load`](paragpu_client::module::Modules::load).
    pub fn module(&self, session: &Session) -> Result<Arc<Module>> {
        // Held over the load, so that a session loads the image once.
        let mut modules = self.modules.lock();
        if let Some(module) = modules.get(&session.ordinal()) {
            return Ok(Arc::clone(module));
        }
        let loaded = session.modules().load(&self.image, &self.options)?;
        modules.insert(session.ordinal(), Arc::clone(&loaded));
        Ok(loaded)
    }

    /// The session's part is gone: its module, if it had one.
    pub fn forget(&self, ordinal: u32) -> Option<Arc<Module>> {
        self.module_handles.lock().remove(&ordinal);
        self.modules.lock().remove(&ordinal)
    }

    /// Its modules by session, from now on nobody's.
    pub fn take_modules(&self) -> HashMap<u32, Arc<Module>> {
        std::mem::take(&mut *self.modules.lock())
    }

    /// Handles of its modules.
    pub fn module_handles(&self) -> Vec<u64> {
        self.module_handles.lock().values().copied().collect()
    }

    /// Handle of its module in a session; `make` makes it at the first use.
    pub fn module_handle(&self, ordinal: u32, make: impl FnOnce() -> u64) -> u64 {
        *self
            .module_handles
            .lock()
            .entry(ordinal)
            .or_insert_with(make)
    }

    /// Handle of a kernel that was asked for before.
    pub fn known_kernel(&self, name: &str) -> Option<u64> {
        self.kernels.lock().get(name).copied()
    }

    /// Handle of a kernel; `make` makes it at the first use.
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
        let place = self.functions.get(ordinal as usize);
        place.map_or(0, |place| place.load(Ordering::Acquire))
    }

    /// The function in a session has this handle; 0 where it is gone.
    pub fn set_function(&self, ordinal: u32, handle: u64) {
        if let Some(place) = self.functions.get(ordinal as usize) {
            place.store(handle, Ordering::Release);
        }
    }
}

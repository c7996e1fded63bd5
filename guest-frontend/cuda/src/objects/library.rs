//! Libraries and their kernels.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_client::module::{FormerVariables, Module};
use paragpu_client::{Result, Session};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::eager_loading::load_kernels;
use crate::managed;
use crate::sys::device;

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
    /// The session at whose addresses the program uses managed variables. The others have
    /// copies.
    managed_in: Option<u32>,
    /// The names of these variables.
    managed: BTreeSet<String>,
    /// Those of a session that was reset, which its next module gets.
    former: Option<(u32, FormerVariables)>,
}

impl Modules {
    /// Gives a session's module copies of the managed variables `names`.
    fn copy_managed<'a>(
        &self,
        session: &Session,
        module: &Module,
        mut names: impl Iterator<Item = &'a String>,
    ) -> Result<()> {
        let home = self.managed_in.and_then(|home| self.loaded.get(&home));
        let Some(home) = home.filter(|_| self.managed_in != Some(session.ordinal())) else {
            return Ok(());
        };
        names.try_for_each(|name| session.modules().copy_managed(module, name, home))
    }
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
            modules: Mutex::new(Modules {
                loaded: HashMap::from([(session.ordinal(), module)]),
                ..Modules::default()
            }),
            kernels: Mutex::default(),
            module_handles: Mutex::default(),
        }
    }

    /// The module in a session, loaded at the first use.
    ///
    /// # Errors
    /// As [`Modules::load`](paragpu_client::module::Modules::load).
    pub fn module(&self, session: &Session) -> Result<Arc<Module>> {
        // The lock is held during the load, so that a session loads the image once.
        let mut modules = self.modules.lock();
        let ordinal = session.ordinal();
        if let Some(module) = modules.loaded.get(&ordinal) {
            return Ok(Arc::clone(module));
        }
        let loaded = session.modules().load(&self.image, &self.options)?;
        if let Some((_, former)) = modules.former.take_if(|(home, _)| *home == ordinal) {
            let note = |address, size| managed::insert_variable(address, size, ordinal);
            session.modules().restore_managed(&loaded, &former, note)?;
            modules.managed_in = Some(ordinal);
            modules.managed.extend(former.names().cloned());
        }
        modules.copy_managed(session, &loaded, modules.managed.iter())?;
        load_kernels(session, &loaded);
        modules.loaded.insert(ordinal, Arc::clone(&loaded));
        Ok(loaded)
    }

    /// A managed variable, which `find` looks up in the module of the session where the
    /// program uses the library's variables: `session`, if it uses none yet. The other
    /// sessions that have loaded the library get copies.
    ///
    /// # Errors
    /// Those of `find`; as [`module`](Self::module).
    pub fn managed<R>(
        &self,
        session: &'static Session,
        name: &str,
        find: impl FnOnce(&Session, &Module) -> Result<R>,
    ) -> Result<R> {
        self.module(session)?;
        let mut modules = self.modules.lock();
        let home = modules.managed_in.and_then(device::session_if_open);
        let home = home.unwrap_or(session);
        let module = modules.loaded.get(&home.ordinal());
        let found = find(home, module.ok_or(Status::NOT_FOUND)?)?;
        modules.managed_in = Some(home.ordinal());
        if modules.managed.insert(name.to_owned()) {
            for (ordinal, module) in &modules.loaded {
                if let Some(session) = device::session_if_open(*ordinal) {
                    let names = modules.managed.get(name);
                    modules.copy_managed(session, module, names.into_iter())?;
                }
            }
        }
        Ok(found)
    }

    /// Keeps the managed variables of a session that was reset, as NVIDIA's driver does, if the
    /// program uses them at that session's addresses.
    pub fn keep_managed(&self, ordinal: u32, former: FormerVariables) {
        let mut modules = self.modules.lock();
        if modules.managed_in.is_none() && former.names().next().is_some() {
            modules.former = Some((ordinal, former));
        }
    }

    /// Removes a session's module, if it has one.
    pub fn forget(&self, ordinal: u32) -> Option<Arc<Module>> {
        self.module_handles.lock().remove(&ordinal);
        let mut modules = self.modules.lock();
        if modules.managed_in == Some(ordinal) {
            modules.managed_in = None;
            modules.managed.clear();
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

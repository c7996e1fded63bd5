//! Libraries and their kernels.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_client::module::{FormerVariables, Module};
use paragpu_client::{Result, Session};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock};

use crate::eager_loading::load_kernels;
use crate::managed;
use crate::objects::context::Place;

/// A library: an image that is loaded into each context that uses it.
#[derive(Debug)]
pub struct Library {
    /// The program's own, if it keeps it.
    image: Cow<'static, [u8]>,
    options: Vec<(u32, u32)>,
    /// The module in each context that uses the library.
    modules: Mutex<Modules>,
    /// Handles of the kernels looked up so far.
    kernels: Mutex<HashMap<String, u64>>,
    /// Handles of the modules, by [`Place::number`].
    module_handles: Mutex<HashMap<u64, u64>>,
}

/// A module, and its session.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The session.
    pub session: &'static Session,
    /// The module.
    pub module: Arc<Module>,
}

/// Modules of a library.
#[derive(Debug, Default)]
struct Modules {
    /// By [`Place::number`].
    loaded: HashMap<u64, Loaded>,
    /// The one at whose addresses the program uses managed variables. The others have copies.
    /// It stays loaded until no context of its device is left.
    managed_in: Option<Loaded>,
    /// The names of these variables.
    managed: BTreeSet<String>,
    /// Those of a session that was reset, which its next module gets.
    former: Option<(u32, FormerVariables)>,
}

impl Modules {
    /// Whether the program uses managed variables at the addresses of this module.
    fn is_home(&self, of: &Loaded) -> bool {
        let home = self.managed_in.as_ref();
        home.is_some_and(|home| Arc::ptr_eq(&home.module, &of.module))
    }

    /// Gives a module copies of the managed variables `names`.
    fn copy_managed<'a>(
        &self,
        to: &Loaded,
        mut names: impl Iterator<Item = &'a String>,
    ) -> Result<()> {
        let home = self.managed_in.as_ref().filter(|_| !self.is_home(to));
        let Some(home) = home else {
            return Ok(());
        };
        let modules = to.session.modules();
        names.try_for_each(|name| modules.copy_managed(&to.module, name, &home.module))
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
    /// Handle of the function in each device's primary context, which most programs use; 0 for
    /// none yet.
    functions: [AtomicU64; MAX_DEVICES as usize],
    /// Handles of the functions in other contexts.
    others: RwLock<HashMap<u64, u64>>,
    /// What the program set for all contexts of a device: ordinal, attribute and value.
    pub attributes: Mutex<Vec<(u32, u32, i32)>>,
}

impl Library {
    /// A library of this image, which `place` has loaded already.
    pub fn new(
        image: Cow<'static, [u8]>,
        options: &[(u32, u32)],
        place: Place,
        module: Arc<Module>,
    ) -> Self {
        let session = place.session;
        Self {
            image,
            options: options.to_vec(),
            modules: Mutex::new(Modules {
                loaded: HashMap::from([(place.number(), Loaded { session, module })]),
                ..Modules::default()
            }),
            kernels: Mutex::default(),
            module_handles: Mutex::default(),
        }
    }

    /// The module in a context, loaded at the first use.
    ///
    /// # Errors
    /// As [`Modules::load`](paragpu_client::module::Modules::load).
    pub fn module(&self, place: Place) -> Result<Arc<Module>> {
        // The lock is held during the load, so that a context loads the image once.
        let mut modules = self.modules.lock();
        if let Some(loaded) = modules.loaded.get(&place.number()) {
            return Ok(Arc::clone(&loaded.module));
        }
        let session = place.session;
        let ordinal = session.ordinal();
        let module = session.modules().load(&self.image, &self.options)?;
        let loaded = Loaded { session, module };
        if let Some((_, former)) = modules.former.take_if(|(home, _)| *home == ordinal) {
            let note = |address, size| managed::insert_variable(address, size, ordinal);
            let now = session.modules();
            now.restore_managed(&loaded.module, &former, note)?;
            modules.managed_in = Some(loaded.clone());
            modules.managed.extend(former.names().cloned());
        }
        modules.copy_managed(&loaded, modules.managed.iter())?;
        load_kernels(session, &loaded.module);
        modules.loaded.insert(place.number(), loaded.clone());
        Ok(loaded.module)
    }

    /// A managed variable, which `find` looks up in the module where the program uses the
    /// library's variables: that of `place`, if it uses none yet. The others get copies.
    ///
    /// # Errors
    /// Those of `find`; as [`module`](Self::module).
    pub fn managed<R>(
        &self,
        place: Place,
        name: &str,
        find: impl FnOnce(&Session, &Module) -> Result<R>,
    ) -> Result<R> {
        self.module(place)?;
        let mut modules = self.modules.lock();
        let own = || modules.loaded.get(&place.number()).cloned();
        let home = modules.managed_in.clone().or_else(own);
        let home = home.ok_or(Status::NOT_FOUND)?;
        let found = find(home.session, &home.module)?;
        modules.managed_in = Some(home);
        if modules.managed.insert(name.to_owned()) {
            for loaded in modules.loaded.values() {
                modules.copy_managed(loaded, modules.managed.get(name).into_iter())?;
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

    /// Removes the module of a context that ended, and its handle. Returns the module, unless the
    /// program uses its managed variables, and the handle.
    pub fn forget(&self, place: Place) -> (Option<Loaded>, Option<u64>) {
        let handle = self.module_handles.lock().remove(&place.number());
        let mut modules = self.modules.lock();
        let ended = modules.loaded.remove(&place.number());
        (ended.filter(|ended| !modules.is_home(ended)), handle)
    }

    /// Takes the module whose managed variables the program uses, if it is of this session,
    /// which has no contexts any more.
    pub fn forget_managed(&self, ordinal: u32) -> Option<Loaded> {
        let mut modules = self.modules.lock();
        let home = modules
            .managed_in
            .take_if(|home| home.session.ordinal() == ordinal)?;
        modules.managed.clear();
        modules
            .loaded
            .retain(|_, loaded| !Arc::ptr_eq(&loaded.module, &home.module));
        Some(home)
    }

    /// Takes its modules.
    pub fn take_modules(&self) -> Vec<Loaded> {
        let mut modules = std::mem::take(&mut *self.modules.lock());
        let home = modules.managed_in.take();
        let is_home = |loaded: &Loaded| {
            let home = home.as_ref();
            home.is_some_and(|home| Arc::ptr_eq(&home.module, &loaded.module))
        };
        modules.loaded.retain(|_, loaded| !is_home(loaded));
        modules.loaded.into_values().chain(home.clone()).collect()
    }

    /// Handles of its modules.
    pub fn module_handles(&self) -> Vec<u64> {
        self.module_handles.lock().values().copied().collect()
    }

    /// Handle of its module in a context; `make` creates it at the first use.
    pub fn module_handle(&self, place: Place, make: impl FnOnce() -> u64) -> u64 {
        *self
            .module_handles
            .lock()
            .entry(place.number())
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
    /// A kernel that no context uses yet.
    pub fn new(library: Arc<Library>, library_handle: u64, name: &str) -> Self {
        Self {
            library,
            library_handle,
            name: name.to_owned(),
            functions: [const { AtomicU64::new(0) }; MAX_DEVICES as usize],
            others: RwLock::default(),
            attributes: Mutex::default(),
        }
    }

    /// The value of an attribute that the program has set for all contexts of a device.
    pub fn attribute(&self, ordinal: u32, attribute: i32) -> Option<i32> {
        let attributes = self.attributes.lock();
        let mut set = attributes.iter();
        let is_it = |it: &&(u32, u32, i32)| (it.0, i64::from(it.1)) == (ordinal, attribute.into());
        set.find(is_it).map(|(.., value)| *value)
    }

    /// The slot of a device's primary context.
    fn slot(&self, place: Place) -> Option<&AtomicU64> {
        self.functions.get(place.session.ordinal() as usize)
    }

    /// Handle of the function in a context; 0 for none yet.
    pub fn function(&self, place: Place) -> u64 {
        let found = match place.other {
            None => self.slot(place).map(|slot| slot.load(Ordering::Acquire)),
            Some(context) => self.others.read().get(&context).copied(),
        };
        found.unwrap_or(0)
    }

    /// Handles of the functions in the contexts of a device.
    pub fn functions(&self, session: &'static Session) -> Vec<u64> {
        let primary = self.function(Place::primary(session));
        let mut all: Vec<u64> = self.others.read().values().copied().collect();
        all.push(primary);
        all
    }

    /// Sets the handle of the function in a context; 0 if it is gone.
    pub fn set_function(&self, place: Place, handle: u64) {
        match place.other {
            None => {
                if let Some(slot) = self.slot(place) {
                    slot.store(handle, Ordering::Release);
                }
            }
            Some(context) if handle == 0 => drop(self.others.write().remove(&context)),
            Some(context) => drop(self.others.write().insert(context, handle)),
        }
    }
}

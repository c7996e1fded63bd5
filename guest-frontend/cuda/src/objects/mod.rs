//! The objects behind the program's handles.
//!
//! A handle is a number that is never reused, so that a stale or foreign handle is
//! detected. It is not an address: dereferencing one faults. Repeated lookups, as for
//! each launch, are answered from the thread's cache, which an atomic counter of
//! destructions invalidates.

pub mod context;
pub mod green;
pub mod library;
pub mod limits;
pub mod peers;
pub mod pool;
pub mod texture_reference;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use paragpu_client::Session;
use paragpu_client::event::Event;
use paragpu_client::graph_exec::GraphExec;
use paragpu_client::module::{Function, Module};
use paragpu_client::objects::graph::Graph;
use paragpu_client::objects::user_object::UserObject;
use paragpu_client::stream::Stream;
use paragpu_client::texture::{Array, ArrayLevel, Surface, Texture};
use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock};

use crate::sys::linking::Linking;
use context::Context;
use green::{Description, GreenContext, Part};
use library::{Kernel, Library};
use pool::Pool;
use texture_reference::TextureReference;

/// Base of all handles; not a valid address.
const BASE: u64 = 0x7067_0000_0000_0000;
/// Distance between handles.
const STEP: u64 = 16;
/// Entries of a thread's cache.
const CACHE: usize = 64;

/// The object behind a handle.
#[derive(Debug)]
pub enum Object {
    /// A CUcontext.
    Context(Arc<Context>),
    /// A CUstream.
    Stream(InContext<Stream>),
    /// A CUevent.
    Event(InContext<Event>),
    /// A CUmodule, and the handles of its functions.
    Module(InContext<Module>, Named),
    /// A CUfunction, and the handle of its module.
    Function(InContext<Function>, u64),
    /// A CUlibrary.
    Library(Arc<Library>),
    /// A CUkernel.
    Kernel(Kernel),
    /// A CUlinkState.
    Link(InContext<Linking>),
    /// A CUarray.
    Array(InContext<ArrayLevel>),
    /// A CUmipmappedArray.
    Mipmapped(InContext<Array>),
    /// A CUmemoryPool.
    Pool(Pool),
    /// A CUgraph.
    Graph(Arc<Graph>),
    /// A CUgraph that is part of a node.
    EmbeddedGraph(Weak<Graph>),
    /// A CUgraphExec.
    GraphExec(InContext<GraphExec>),
    /// A CUtexref that the program created.
    TextureReference(Mutex<TextureReference>),
    /// A CUuserObject.
    UserObject(Arc<UserObject>),
    /// A CUgreenCtx.
    Green(Arc<GreenContext>),
    /// The object behind a CUdevResource.
    Part(Arc<Part>),
    /// A CUdevResourceDesc.
    Description(Arc<Description>),
}

impl Object {
    /// The handle of the context with which the object is destroyed.
    fn context(&self) -> Option<u64> {
        match self {
            Self::Stream(inner) => Some(inner.context),
            Self::Event(inner) => Some(inner.context),
            Self::Module(inner, _) => Some(inner.context),
            Self::Function(inner, _) => Some(inner.context),
            Self::Link(inner) => Some(inner.context),
            Self::Array(inner) => Some(inner.context),
            Self::Mipmapped(inner) => Some(inner.context),
            Self::GraphExec(inner) => Some(inner.context),
            Self::Context(_)
            | Self::Library(_)
            | Self::Kernel(_)
            | Self::Pool(_)
            | Self::Graph(_)
            | Self::EmbeddedGraph(_)
            | Self::TextureReference(_)
            | Self::UserObject(_)
            | Self::Green(_)
            | Self::Part(_)
            | Self::Description(_) => None,
        }
    }
}

/// An object of one context.
#[derive(Debug)]
pub struct InContext<T> {
    /// The context's handle.
    pub context: u64,
    /// Its session.
    pub session: &'static Session,
    /// The object.
    pub object: Arc<T>,
}

impl<T> InContext<T> {
    /// An object that was created in a context.
    pub fn new(context: &Context, object: Arc<T>) -> Self {
        Self {
            context: context.handle,
            session: context.session,
            object,
        }
    }
}

/// Handles by name: the same name has the same handle.
#[derive(Debug, Default)]
pub struct Named(Mutex<HashMap<String, u64>>);

impl Named {
    /// The handle of this name; `make` creates it at the first use.
    pub fn handle(&self, name: &str, make: impl FnOnce() -> *mut c_void) -> *mut c_void {
        let mut all = self.0.lock();
        let known = all.get(name).copied();
        let handle = known.unwrap_or_else(|| {
            let made = make() as u64;
            all.insert(name.to_owned(), made);
            made
        });
        as_handle(handle)
    }
}

/// Texture and surface objects. Their handles are the values that kernels receive, which
/// the host chooses.
#[derive(Debug)]
pub enum Bindless {
    /// A CUtexObject.
    Texture(InContext<Texture>),
    /// A CUsurfObject.
    Surface(InContext<Surface>),
}

struct Objects {
    all: RwLock<HashMap<u64, Arc<Object>>>,
    /// Streams and events whose context has ended.
    bereft: RwLock<HashSet<u64>>,
    next: AtomicU64,
    /// Counts destructions, after the object was removed. Each thread caches what it finds
    /// together with the epoch that it read before, so that it never finds an object again
    /// that was removed meanwhile.
    epoch: AtomicU64,
}

static OBJECTS: std::sync::LazyLock<Objects> = std::sync::LazyLock::new(|| Objects {
    all: RwLock::new(HashMap::new()),
    bereft: RwLock::default(),
    next: AtomicU64::new(BASE + STEP),
    epoch: AtomicU64::new(0),
});

/// An object, for use by one thread.
pub type Found = Rc<Arc<Object>>;

struct Cache {
    epoch: u64,
    entries: [Option<(u64, Found)>; CACHE],
}

thread_local! {
    static FOUND: RefCell<Cache> = const {
        RefCell::new(Cache {
            epoch: 0,
            entries: [const { None }; CACHE],
        })
    };
}

/// Gives an object a handle.
pub fn insert(object: Object) -> *mut c_void {
    insert_with(|_| object)
}

/// Creates an object with `make`, which receives its handle.
pub fn insert_with(make: impl FnOnce(u64) -> Object) -> *mut c_void {
    let handle = OBJECTS.next.fetch_add(STEP, Ordering::Relaxed);
    let object = Arc::new(make(handle));
    OBJECTS.all.write().insert(handle, object);
    as_handle(handle)
}

/// A handle as the program receives it.
pub fn as_handle<T>(handle: u64) -> *mut T {
    std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0))
}

/// The object with this handle.
pub fn find(handle: *mut c_void) -> Option<Found> {
    let handle = handle as u64;
    let index = (handle / STEP) as usize % CACHE;
    let epoch = OBJECTS.epoch.load(Ordering::Acquire);
    let cached = FOUND.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.epoch != epoch {
            cache.entries = [const { None }; CACHE];
            cache.epoch = epoch;
        }
        match cache.entries.get(index) {
            Some(Some((key, found))) if *key == handle => Some(Rc::clone(found)),
            _ => None,
        }
    });
    if let Ok(Some(found)) = cached {
        return Some(found);
    }
    let found = {
        let all = OBJECTS.all.read();
        Rc::new(Arc::clone(all.get(&handle)?))
    };
    let _ = FOUND.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.epoch == epoch
            && let Some(entry) = cache.entries.get_mut(index)
        {
            *entry = Some((handle, Rc::clone(&found)));
        }
    });
    Some(found)
}

/// The error for a missing stream or event: `CONTEXT_IS_DESTROYED` if it was
/// destroyed with its context, or `INVALID_HANDLE`.
pub fn missing(handle: *mut c_void) -> Status {
    match OBJECTS.bereft.read().contains(&(handle as u64)) {
        true => Status::CONTEXT_IS_DESTROYED,
        false => Status::INVALID_HANDLE,
    }
}

/// Removes a handle if `wanted` returns true. Returns its object.
pub fn remove(handle: *mut c_void, wanted: impl FnOnce(&Object) -> bool) -> Option<Arc<Object>> {
    let mut all = OBJECTS.all.write();
    if !wanted(all.get(&(handle as u64))?) {
        return None;
    }
    let object = all.remove(&(handle as u64));
    OBJECTS.epoch.fetch_add(1, Ordering::AcqRel);
    object
}

/// Puts another object in the place of a handle's.
pub fn replace(handle: *mut c_void, object: Object) {
    let mut all = OBJECTS.all.write();
    if let Some(place) = all.get_mut(&(handle as u64)) {
        *place = Arc::new(object);
    }
    OBJECTS.epoch.fetch_add(1, Ordering::AcqRel);
}

/// Calls `look` with every object.
pub fn for_each(look: impl FnMut(&Object)) {
    let all: Vec<Arc<Object>> = OBJECTS.all.read().values().cloned().collect();
    all.iter().map(|object| &**object).for_each(look);
}

/// Calls `look` with every handle and its object.
pub fn for_each_handle(mut look: impl FnMut(*mut c_void, &Object)) {
    let all = OBJECTS.all.read();
    for (handle, object) in all.iter() {
        let handle = usize::try_from(*handle).unwrap_or(0);
        look(std::ptr::without_provenance_mut(handle), object);
    }
}

/// Removes every handle whose object `ended` selects. Returns the objects.
pub fn remove_all(ended: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
    let mut all = OBJECTS.all.write();
    let handles: Vec<u64> = all
        .iter()
        .filter(|(_, object)| ended(object))
        .map(|(handle, _)| *handle)
        .collect();
    let removed = handles
        .iter()
        .filter_map(|handle| all.remove(handle))
        .collect();
    OBJECTS.epoch.fetch_add(1, Ordering::AcqRel);
    removed
}

/// Removes the objects created in a context, and returns them.
pub fn end_of_context(context: u64) -> Vec<Arc<Object>> {
    let all = OBJECTS.all.read();
    let of_context = all
        .iter()
        .filter(|(_, object)| object.context() == Some(context));
    let of_streams =
        of_context.filter(|(_, object)| matches!(&***object, Object::Stream(_) | Object::Event(_)));
    let bereft: Vec<u64> = of_streams.map(|(handle, _)| *handle).collect();
    drop(all);
    OBJECTS.bereft.write().extend(bereft);
    remove_all(|object| object.context() == Some(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Object {
        Object::Pool(Pool::new(pool::PoolLocation::Device(0), 0))
    }

    #[test]
    fn a_removed_handle_is_not_found_again() {
        let handle = insert(pool());
        assert!(find(handle).is_some());
        assert!(find(handle).is_some(), "from the cache");
        assert!(remove(handle, |_| false).is_none());
        assert!(remove(handle, |object| matches!(object, Object::Pool(_))).is_some());
        assert!(find(handle).is_none());
        assert!(remove(handle, |_| true).is_none());
        assert_ne!(insert(pool()), handle);
    }

    #[test]
    fn null_and_garbage_are_nobody() {
        assert!(find(std::ptr::null_mut()).is_none());
        assert!(find(std::ptr::without_provenance_mut(0x1234)).is_none());
    }
}

//! Modules and kernels, with the host's facts about them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_abi as abi;
use paragpu_protocol::handle::{FunctionHandle, ModuleHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{FunctionInfo, pairs};
use parking_lot::Mutex;

use crate::error::Result;
use crate::objects::managed_variable::ManagedVariable;

/// Maximum threads in a block.
pub const MAX_THREADS_PER_BLOCK: u32 = abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK.cast_unsigned();
/// Static shared memory in bytes.
pub const SHARED_SIZE_BYTES: u32 = abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.cast_unsigned();
/// Registers of a thread.
pub const NUM_REGS: u32 = abi::CU_FUNC_ATTRIBUTE_NUM_REGS.cast_unsigned();
/// Maximum dynamic shared memory in bytes.
pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 =
    abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.cast_unsigned();
/// Preferred part of shared memory.
pub const PREFERRED_SHARED_MEMORY_CARVEOUT: u32 =
    abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT.cast_unsigned();

/// The required cluster's width, height and depth.
const REQUIRED_CLUSTER: [u32; 3] = [
    abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH.cast_unsigned(),
    abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT.cast_unsigned(),
    abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH.cast_unsigned(),
];
/// Whether clusters may have more blocks than any device supports.
const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: u32 =
    abi::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.cast_unsigned();

/// Maximum number of blocks of a cluster, on all devices and on those that support most.
const PORTABLE_CLUSTER: u64 = 8;
const LARGEST_CLUSTER: u64 = 16;

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    handle: ModuleHandle,
    functions: Mutex<HashMap<String, Arc<Function>>>,
    globals: Mutex<HashMap<String, (u64, u64)>>,
    /// Variables that the program can access as well.
    managed: Mutex<HashMap<String, ManagedVariable>>,
    /// Names of all its kernels.
    pub(crate) names: OnceLock<Arc<[String]>>,
    log: String,
}

/// Maximum number of cached answers of a kind: their keys may contain a grid.
const MAX_ANSWERS: usize = 4096;

/// Cached answers of the host, valid until an attribute of the kernel changes.
#[derive(Debug)]
pub(crate) struct Answers<K, V>(Mutex<Known<K, V>>);

#[derive(Debug)]
struct Known<K, V> {
    answers: HashMap<K, V>,
    /// Counts the changes.
    changes: u64,
}

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            answers: HashMap::new(),
            changes: 0,
        }))
    }
}

impl<K: Hash + Eq, V: Copy> Answers<K, V> {
    /// The cached value of `key`, or the result of `query`.
    pub(crate) fn get(&self, key: K, query: impl FnOnce() -> Result<V>) -> Result<V> {
        let changes = {
            let known = self.0.lock();
            if let Some(answer) = known.answers.get(&key) {
                return Ok(*answer);
            }
            known.changes
        };
        // Not under the lock, because it is a round trip. Two threads that query at the
        // same time get the same answer.
        let answer = query()?;
        let mut known = self.0.lock();
        // The host may have answered before an attribute changed.
        if known.changes == changes {
            if known.answers.len() >= MAX_ANSWERS {
                known.answers.clear();
            }
            known.answers.insert(key, answer);
        }
        Ok(answer)
    }

    fn forget(&self) {
        let mut known = self.0.lock();
        known.answers.clear();
        known.changes += 1;
    }
}

/// A kernel of a module, with all that is constant about it.
#[derive(Debug)]
pub struct Function {
    handle: FunctionHandle,
    name: String,
    attributes: Mutex<HashMap<u32, i32>>,
    /// Held while the host changes an attribute, so that the value noted last is the host's.
    changing: Mutex<()>,
    parameters: Vec<(u32, u32)>,
    parameter_bytes: usize,
    /// The limits that each launch is checked against.
    registers: u32,
    max_threads: AtomicU32,
    static_shared: u32,
    max_dynamic_shared: AtomicU32,
    cluster_rule: ClusterRule,
    /// Blocks on a multiprocessor, by block size, dynamic shared memory, flags.
    pub(crate) blocks: Answers<(i32, u64, u32), i32>,
    /// Dynamic shared memory, by blocks and block size.
    pub(crate) dynamic_shared: Answers<(i32, i32), u64>,
    /// Active clusters, by launch; libraries ask before each launch of some kernels.
    pub(crate) clusters: Answers<ClusterLaunch, i32>,
    /// The largest cluster, by launch.
    pub(crate) cluster_size: Answers<ClusterLaunch, i32>,
}

/// What questions about clusters depend on: grid, block, cluster, dynamic shared memory.
pub(crate) type ClusterLaunch = ([u32; 3], [u32; 3], [u32; 3], u32);

/// Which clusters a kernel may be launched with.
#[derive(Debug, Default)]
struct ClusterRule {
    /// Blocks of the cluster that the kernel requires; zeros for none.
    required: [AtomicU32; 3],
    is_non_portable_allowed: AtomicBool,
}

impl ClusterRule {
    fn note(&self, attribute: u32, value: i32) {
        if attribute == NON_PORTABLE_CLUSTER_SIZE_ALLOWED {
            self.is_non_portable_allowed
                .store(value != 0, Ordering::Relaxed);
        }
        for (side, number) in self.required.iter().zip(REQUIRED_CLUSTER) {
            if attribute == number {
                side.store(u32::try_from(value).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }

    /// The cluster of a launch that asks for `asked`; zeros for none.
    ///
    /// # Errors
    /// `INVALID_CLUSTER_SIZE`.
    fn choose(&self, asked: [u32; 3]) -> Result<[u32; 3]> {
        let required = self.required.each_ref();
        let required = required.map(|side| side.load(Ordering::Relaxed));
        let chosen = match (asked, required) {
            ([0, 0, 0], required) => required,
            (asked, [0, 0, 0]) => asked,
            (asked, required) if asked == required => asked,
            _ => return Err(Status::INVALID_CLUSTER_SIZE),
        };
        if chosen == [0; 3] {
            return Ok(chosen);
        }
        let most = match self.is_non_portable_allowed.load(Ordering::Relaxed) {
            true => LARGEST_CLUSTER,
            false => PORTABLE_CLUSTER,
        };
        let sides = chosen.iter().copied().map(u64::from);
        let blocks = sides.fold(1, u64::saturating_mul);
        match (1..=most).contains(&blocks) {
            true => Ok(chosen),
            false => Err(Status::INVALID_CLUSTER_SIZE),
        }
    }
}

impl Module {
    /// A module with the host's `handle` and its loader's log.
    pub(crate) fn new(handle: ModuleHandle, log: String) -> Self {
        Self {
            handle,
            functions: Mutex::default(),
            globals: Mutex::default(),
            managed: Mutex::default(),
            names: OnceLock::new(),
            log,
        }
    }

    /// The host's name for the module.
    #[must_use]
    pub fn handle(&self) -> ModuleHandle {
        self.handle
    }

    /// The loader's messages.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The kernel of this name, if it was looked up.
    pub(crate) fn known_function(&self, name: &str) -> Option<Arc<Function>> {
        self.functions.lock().get(name).cloned()
    }

    /// Stores a kernel. Of two with one name, the first is kept.
    pub(crate) fn keep_function(&self, function: Function) -> Arc<Function> {
        let mut functions = self.functions.lock();
        let entry = functions.entry(function.name.clone());
        Arc::clone(entry.or_insert_with(|| Arc::new(function)))
    }

    /// Address and bytes of the variable of this name, if it was looked up.
    pub(crate) fn known_global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals.lock().get(name).copied()
    }

    /// Whether this variable was looked up.
    #[must_use]
    pub fn knows_global(&self, name: &str) -> bool {
        self.known_global(name).is_some()
    }

    /// Stores a variable's address and bytes.
    pub(crate) fn keep_global(&self, name: &str, range: (u64, u64)) {
        self.globals.lock().insert(name.to_owned(), range);
    }

    /// The managed variable of this name, created by `make` if it is unknown:
    /// address and size.
    pub(crate) fn managed(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<ManagedVariable>,
    ) -> Result<(u64, u64)> {
        // The lock is held meanwhile, so that no other thread maps it too.
        let mut managed = self.managed.lock();
        if let Some(known) = managed.get(name) {
            return Ok(known.range());
        }
        let made = make()?;
        let range = made.range();
        managed.insert(name.to_owned(), made);
        Ok(range)
    }

    /// What `with` makes of the managed variable of this name, if it is known.
    pub(crate) fn with_managed<R>(
        &self,
        name: &str,
        with: impl FnOnce(&ManagedVariable) -> R,
    ) -> Option<R> {
        self.managed.lock().get(name).map(with)
    }

    /// The program's first addresses of its managed variables.
    #[must_use]
    pub fn managed_addresses(&self) -> Vec<u64> {
        let managed = self.managed.lock();
        managed.values().map(|known| known.range().0).collect()
    }

    /// Takes its managed variables, by name.
    pub(crate) fn take_managed(&self) -> HashMap<String, ManagedVariable> {
        std::mem::take(&mut *self.managed.lock())
    }

    /// Addresses of the variables looked up.
    pub(crate) fn global_addresses(&self) -> Vec<u64> {
        self.globals
            .lock()
            .values()
            .map(|(address, _)| *address)
            .collect()
    }
}

impl Function {
    /// A kernel with the host's `info`.
    pub(crate) fn from_wire(handle: FunctionHandle, name: &str, info: &FunctionInfo<'_>) -> Self {
        let attributes: HashMap<u32, i32> = pairs(info.attributes)
            .map(|(attribute, value)| (attribute, value.cast_signed()))
            .collect();
        let parameters: Vec<(u32, u32)> = pairs(info.parameters).collect();
        let cluster_rule = ClusterRule::default();
        for (&attribute, &value) in &attributes {
            cluster_rule.note(attribute, value);
        }
        let positive = |attribute, default| {
            attributes
                .get(&attribute)
                .and_then(|value| u32::try_from(*value).ok())
                .unwrap_or(default)
        };
        Self {
            handle,
            name: name.to_owned(),
            parameter_bytes: parameters
                .iter()
                .map(|&(offset, size)| offset as usize + size as usize)
                .max()
                .unwrap_or(0),
            max_threads: AtomicU32::new(positive(MAX_THREADS_PER_BLOCK, 1024)),
            registers: positive(NUM_REGS, 0),
            static_shared: positive(SHARED_SIZE_BYTES, 0),
            max_dynamic_shared: AtomicU32::new(positive(MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 << 10)),
            attributes: Mutex::new(attributes),
            changing: Mutex::default(),
            parameters,
            cluster_rule,
            blocks: Answers::default(),
            dynamic_shared: Answers::default(),
            clusters: Answers::default(),
            cluster_size: Answers::default(),
        }
    }

    /// The host's name for the kernel.
    #[must_use]
    pub fn handle(&self) -> FunctionHandle {
        self.handle
    }

    /// The mangled name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A CUfunction_attribute.
    #[must_use]
    pub fn attribute(&self, attribute: u32) -> Option<i32> {
        self.attributes.lock().get(&attribute).copied()
    }

    /// Offset and size in bytes of each parameter, in order.
    #[must_use]
    pub fn parameters(&self) -> &[(u32, u32)] {
        &self.parameters
    }

    /// Bytes of all parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    /// Registers of a thread.
    pub(crate) fn registers(&self) -> u32 {
        self.registers
    }

    /// Maximum number of threads in a block.
    pub(crate) fn max_threads(&self) -> u32 {
        self.max_threads.load(Ordering::Relaxed)
    }

    /// Bytes of static shared memory.
    pub(crate) fn static_shared(&self) -> u32 {
        self.static_shared
    }

    /// Maximum number of bytes of dynamic shared memory.
    pub(crate) fn max_dynamic_shared(&self) -> u32 {
        self.max_dynamic_shared.load(Ordering::Relaxed)
    }

    /// The cluster of a launch that asks for `asked`; zeros for none.
    ///
    /// # Errors
    /// `INVALID_CLUSTER_SIZE` if the kernel requires another one, or for too many blocks.
    pub(crate) fn cluster(&self, asked: [u32; 3]) -> Result<[u32; 3]> {
        self.cluster_rule.choose(asked)
    }

    /// Changes an attribute with `change`, unless it has the value.
    ///
    /// # Errors
    /// Those of `change`.
    pub(crate) fn change_attribute(
        &self,
        attribute: u32,
        value: i32,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _changing = self.changing.lock();
        if self.attribute(attribute) != Some(value) {
            change()?;
            self.note_attribute(attribute, value);
        }
        Ok(())
    }

    fn note_attribute(&self, attribute: u32, value: i32) {
        self.attributes.lock().insert(attribute, value);
        self.cluster_rule.note(attribute, value);
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let value = u32::try_from(value).unwrap_or(0);
            self.max_dynamic_shared.store(value, Ordering::Relaxed);
        }
        self.blocks.forget();
        self.dynamic_shared.forget();
        self.clusters.forget();
        self.cluster_size.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicI32;
    use std::thread;

    use paragpu_protocol::codec::Bytes;

    use super::*;

    #[test]
    fn the_noted_value_of_an_attribute_is_the_hosts() {
        const THREADS: i32 = 4;
        let none = Bytes(&[]);
        let info = FunctionInfo {
            attributes: none,
            parameters: none,
        };
        let function = Function::from_wire(FunctionHandle(1), "kernel", &info);
        for round in 0..500 {
            let (host, start) = (AtomicI32::new(0), Barrier::new(THREADS as usize));
            let change = |value| {
                start.wait();
                function.change_attribute(14, value, || {
                    host.store(value, Ordering::Relaxed);
                    thread::yield_now();
                    Ok(())
                })
            };
            thread::scope(|scope| {
                for number in 1..=THREADS {
                    scope.spawn(move || change(round * THREADS + number).unwrap());
                }
            });
            assert_eq!(function.attribute(14), Some(host.into_inner()));
        }
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let answers = Answers::default();
        let while_changing = answers.get(1, || {
            answers.forget();
            Ok(5)
        });
        assert_eq!(while_changing, Ok(5));
        assert_eq!(answers.get(1, || Ok(6)), Ok(6));
        assert_eq!(answers.get(1, || Ok(7)), Ok(6));
    }
}

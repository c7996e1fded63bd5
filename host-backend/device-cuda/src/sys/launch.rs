//! Kernels and host functions in stream order.

use core::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use paragpu_abi::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT,
    CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT, CUlaunchConfig, CUstream, cudaLaunchAttribute,
    cudaLaunchAttributeValue, dim3,
};
use paragpu_device::{HostFunction, Launch, Result};
use paragpu_protocol::table as wire;

use super::context::Context;
use super::driver::check;
use super::resources::{Function, Stream};

impl Context {
    /// cuLaunchKernelEx with a parameter buffer, whose size the caller has checked against
    /// the function's parameters.
    pub fn launch(&self, launch: &Launch<'_>, function: &Function, stream: &Stream) -> Result<()> {
        const PARAMETERS: *mut c_void =
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT);
        const PARAMETERS_SIZE: *mut c_void =
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT);
        let mut attributes = ROOM;
        let config = configuration(launch, &mut attributes, stream.raw());
        let mut size = launch.parameters.len();
        let mut extra = [
            PARAMETERS,
            launch.parameters.as_ptr() as *mut c_void,
            PARAMETERS_SIZE,
            ptr::from_mut(&mut size).cast(),
            ptr::null_mut(),
        ];
        // SAFETY: complete records; the driver copies the parameters before it returns.
        check(unsafe {
            (self.driver.cuLaunchKernelEx)(
                &config,
                function.raw(),
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        })
    }

    /// cuOccupancyMaxActiveClusters.
    pub fn occupancy_clusters(&self, launch: &Launch<'_>, function: &Function) -> Result<i32> {
        let mut attributes = ROOM;
        let config = configuration(launch, &mut attributes, ptr::null_mut());
        let mut clusters = 0;
        // SAFETY: the function is alive; a complete record; an out-parameter.
        check(unsafe {
            (self.driver.cuOccupancyMaxActiveClusters)(&mut clusters, function.raw(), &config)
        })?;
        Ok(clusters)
    }

    /// cuOccupancyMaxPotentialClusterSize.
    pub fn occupancy_cluster_size(&self, launch: &Launch<'_>, function: &Function) -> Result<i32> {
        let mut attributes = ROOM;
        let config = configuration(launch, &mut attributes, ptr::null_mut());
        let mut size = 0;
        // SAFETY: the function is alive; a complete record; an out-parameter.
        check(unsafe {
            (self.driver.cuOccupancyMaxPotentialClusterSize)(&mut size, function.raw(), &config)
        })?;
        Ok(size)
    }

    /// cuLaunchHostFunc.
    pub fn host_function(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        /// # Safety
        /// `argument` is a boxed [`HostFunction`], passed once.
        unsafe extern "C" fn run(argument: *mut c_void) {
            // SAFETY: the pointer made below, given back once.
            let function = unsafe { Box::from_raw(argument.cast::<HostFunction>()) };
            function();
        }
        let argument = Box::into_raw(Box::new(function));
        // SAFETY: the driver calls `run` once with `argument`.
        let launched = check(unsafe {
            (self.driver.cuLaunchHostFunc)(stream.raw(), Some(run), argument.cast())
        });
        if launched.is_err() {
            // SAFETY: the driver refused, so `run` will not take it.
            drop(unsafe { Box::from_raw(argument) });
        }
        launched
    }
}

/// Attributes that a launch can have: three of its own and its preferences.
const MAX_ATTRIBUTES: usize = 3 + wire::Launch::PREFERENCES.len();

/// The attributes of a launch.
type Attributes = [MaybeUninit<cudaLaunchAttribute>; MAX_ATTRIBUTES];

const ROOM: Attributes = [MaybeUninit::uninit(); MAX_ATTRIBUTES];

/// A launch in the driver's format. It points to `attributes`, which must not move
/// while it is used.
fn configuration(
    launch: &Launch<'_>,
    attributes: &mut Attributes,
    stream: CUstream,
) -> CUlaunchConfig {
    let permitted = cudaLaunchAttributeValue { syncPolicy: 1 };
    let programmatic = launch.programmatic.then_some((
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        permitted,
    ));
    let all = attributes_of(launch).chain(programmatic);
    let mut count = 0;
    for (place, (id, val)) in attributes.iter_mut().zip(all) {
        let pad = [0; 4];
        place.write(cudaLaunchAttribute { id, pad, val });
        count += 1;
    }
    CUlaunchConfig {
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: launch.block[2],
        sharedMemBytes: launch.dynamic_shared,
        hStream: stream,
        attrs: attributes.as_mut_ptr().cast(),
        numAttrs: count,
    }
}

/// The attributes that a launch has both in a stream and as a graph node. For a node, the
/// edges determine whether the launch is programmatic.
pub(super) fn attributes_of(
    launch: &Launch<'_>,
) -> impl Iterator<Item = (i32, cudaLaunchAttributeValue)> {
    let cooperative = cudaLaunchAttributeValue { cooperative: 1 };
    let cooperative = launch
        .cooperative
        .then_some((CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative));
    let [x, y, z] = launch.cluster;
    let cluster = cudaLaunchAttributeValue {
        clusterDim: dim3 { x, y, z },
    };
    let cluster =
        (launch.cluster != [0; 3]).then_some((CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster));
    let preferences = launch.preferences.iter();
    let preferences = preferences.map(|one| (one.attribute.cast_signed(), value(&one.value)));
    cooperative.into_iter().chain(cluster).chain(preferences)
}

/// The value of an attribute, from the wire's bytes.
pub(super) fn value(bytes: &[u8; 64]) -> cudaLaunchAttributeValue {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    cudaLaunchAttributeValue { pad: words }
}

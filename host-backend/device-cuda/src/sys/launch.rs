//! Kernels and host functions in stream order.

use core::ffi::c_void;
use std::ptr;

use paragpu_abi::{CUlaunchConfig, CUstream, cudaLaunchAttribute, cudaLaunchAttributeValue, dim3};
use paragpu_device::{HostFunction, Launch, Result};

use super::context::Context;
use super::driver::check;
use super::resources::{Function, Stream};

impl Context {
    /// cuLaunchKernelEx with a parameter buffer, whose size the caller has checked against
    /// the function's parameters.
    pub fn launch(&self, launch: &Launch<'_>, function: &Function, stream: &Stream) -> Result<()> {
        const PARAMETERS: *mut c_void = ptr::without_provenance_mut(1);
        const PARAMETERS_SIZE: *mut c_void = ptr::without_provenance_mut(2);
        let mut attributes = NO_ATTRIBUTES;
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
        let mut attributes = NO_ATTRIBUTES;
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
        let mut attributes = NO_ATTRIBUTES;
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

/// Room for the attributes of a launch.
const NO_ATTRIBUTES: [cudaLaunchAttribute; 3] =
    [attribute(2, cudaLaunchAttributeValue { cooperative: 1 }); 3];

/// A launch as the driver takes it. The record names `attributes`, which must
/// stay where they are while it is used.
fn configuration(
    launch: &Launch<'_>,
    attributes: &mut [cudaLaunchAttribute; 3],
    stream: CUstream,
) -> CUlaunchConfig {
    let mut count = usize::from(launch.cooperative);
    if launch.programmatic {
        let value = cudaLaunchAttributeValue { syncPolicy: 1 };
        attributes[count] = attribute(6, value);
        count += 1;
    }
    if launch.cluster != [0; 3] {
        let [x, y, z] = launch.cluster;
        let value = cudaLaunchAttributeValue {
            clusterDim: dim3 { x, y, z },
        };
        attributes[count] = attribute(4, value);
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
        attrs: attributes.as_mut_ptr(),
        numAttrs: count as u32,
    }
}

/// A launch attribute.
const fn attribute(id: i32, val: cudaLaunchAttributeValue) -> cudaLaunchAttribute {
    cudaLaunchAttribute {
        id,
        pad: [0; 4],
        val,
    }
}

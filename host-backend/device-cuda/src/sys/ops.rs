//! One context of the driver, and the calls made in it.
//!
//! Every function here is safe to call: objects exist while they are named
//! ([`super::resources`]), and addresses come as [`Span`]s.
//!
//! Function parameters are the exception that hardware guards: a kernel may be
//! given any bytes, and an address among them that is not mapped in this
//! process's context ends in `CUDA_ERROR_ILLEGAL_ADDRESS`.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use paragpu_abi::{
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED, CU_RESOURCE_TYPE_ARRAY, CU_RESOURCE_TYPE_LINEAR,
    CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, CU_RESOURCE_TYPE_PITCH2D, CUDA_ARRAY3D_DESCRIPTOR,
    CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUlaunchConfig,
    CUresource, CUresourceLinear, CUresourcePitch2D, cudaLaunchAttribute, cudaLaunchAttributeValue,
    dim3,
};
use paragpu_device::{Error, HostFunction, Result};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, LinearResource, ResourceView, Sampling};

use super::driver::{Driver, MemAccessDesc, MemAllocationProp, MemLocation, check, check_query};
use super::resources::{Array, Event, Function, Module, Stream};

/// A range of addresses that this process owns: device memory that is mapped,
/// or host memory that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    address: u64,
    size: u64,
}

impl Span {
    /// Its first address.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Only for [`crate::memory`], which knows what is mapped and registered.
    pub fn checked(address: u64, size: u64) -> Self {
        Self { address, size }
    }
}

/// One side of a rectangular copy, checked.
pub enum RectEnd<'a> {
    Linear {
        first: Span,
        pitch: u64,
        rows: u64,
    },
    Array {
        array: &'a Array,
        level: u32,
        origin: [u64; 3],
    },
}

/// What a texture reads, checked.
pub enum Resource<'a> {
    Array(&'a Array),
    Linear(Span, LinearResource),
}

/// A launch, its function alive.
pub struct LaunchConfig<'a> {
    pub function: &'a Function,
    pub stream: &'a Stream,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub cooperative: bool,
    pub cluster: [u32; 3],
    pub parameters: &'a [u8],
}

/// The primary context of one device, current in the thread that made it, and
/// a reservation of its address space.
pub struct Context {
    pub(super) driver: Arc<Driver>,
    /// The CUcontext.
    pub(super) raw: usize,
    device: c_int,
    arena: u64,
    arena_size: u64,
}

impl Context {
    /// Retains the primary context, makes it current, and reserves the arena.
    pub fn new(driver: Arc<Driver>, device: c_int, arena: u64, arena_size: u64) -> Result<Self> {
        let mut context = ptr::null_mut();
        // SAFETY: out-parameter of the right type; `device` was returned by cuDeviceGet.
        check(unsafe { (driver.primary_retain)(&mut context, device) })?;
        let mut made = Self {
            driver,
            raw: context as usize,
            device,
            arena: 0,
            arena_size,
        };
        // SAFETY: the context was just retained.
        check(unsafe { (made.driver.ctx_set_current)(context) })?;
        let mut address = 0;
        // SAFETY: out-parameter of the right type; the hint may be any address.
        check(unsafe {
            (made.driver.mem_reserve)(&mut address, arena_size as usize, 0, arena, 0)
        })?;
        made.arena = address;
        if address != arena {
            return Err(Error::new(
                Status::OUT_OF_MEMORY,
                format!("the driver reserved {address:#x} instead of {arena:#x}"),
            ));
        }
        Ok(made)
    }

    /// Makes physical memory, zeroed, and maps it at `address` in the arena,
    /// where nothing is mapped. Returns the allocation's handle.
    pub fn map(&self, address: u64, size: u64) -> Result<u64> {
        let d = &self.driver;
        let location = MemLocation {
            kind: 1,
            id: self.device,
        };
        let property = MemAllocationProp {
            allocation_type: 1,
            handle_types: 1, // POSIX file descriptor: another worker can take it over
            location,
            win32: ptr::null_mut(),
            flags: [0; 8],
        };
        let mut handle = 0;
        // SAFETY: a complete property record and an out-parameter.
        check(unsafe { (d.mem_create)(&mut handle, size as usize, &property, 0) })?;
        let access = MemAccessDesc { location, flags: 3 };
        // SAFETY: the range lies in this context's reservation, and the handle was just created.
        let mapped = check(unsafe { (d.mem_map)(address, size as usize, 0, handle, 0) })
            .and_then(|()| {
                // SAFETY: the range was just mapped.
                check(unsafe { (d.mem_set_access)(address, size as usize, &access, 1) })
            })
            .and_then(|()| {
                // SAFETY: the range is mapped and writable.
                check(unsafe { (d.set_d8_async)(address, 0, size as usize, ptr::null_mut()) })
            })
            .and_then(|()| {
                // SAFETY: the legacy default stream exists.
                check(unsafe { (d.stream_synchronize)(ptr::null_mut()) })
            });
        if let Err(error) = mapped {
            // SAFETY: undoes what was done; a range not mapped is refused.
            unsafe {
                (d.mem_unmap)(address, size as usize);
                (d.mem_release)(handle);
            }
            return Err(error);
        }
        Ok(handle)
    }

    /// Undoes [`map`](Self::map); no work may use the range any more.
    pub fn unmap(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        // SAFETY: the caller hands back what `map` gave.
        check(unsafe { (self.driver.mem_unmap)(address, size as usize) })?;
        // SAFETY: as above; the handle is not used again.
        check(unsafe { (self.driver.mem_release)(handle) })
    }

    /// Free and total bytes of the device.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-parameters of the right type.
        check(unsafe { (self.driver.mem_get_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Pins host memory that stays mapped until [`host_unregister`](Self::host_unregister).
    pub fn host_register(&self, address: u64, size: u64) -> Result<()> {
        const PORTABLE_AND_MAPPED: u32 = 3;
        let pointer = address as *mut c_void;
        // SAFETY: the driver checks that the range is mapped; its owner keeps it so.
        check(unsafe { (self.driver.host_register)(pointer, size as usize, PORTABLE_AND_MAPPED) })?;
        let mut device = 0;
        // SAFETY: out-parameter; the range was just registered.
        let found = check(unsafe { (self.driver.host_device_pointer)(&mut device, pointer, 0) });
        if found.is_err() || device != address {
            // SAFETY: registered above.
            unsafe { (self.driver.host_unregister)(pointer) };
            found?;
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                format!("this GPU sees host address {address:#x} at {device:#x}"),
            ));
        }
        Ok(())
    }

    /// Ends a registration; the driver waits for work that uses it.
    pub fn host_unregister(&self, address: u64) -> Result<()> {
        // SAFETY: no work uses it any more: the context is idle after this.
        check(unsafe { (self.driver.ctx_synchronize)() })?;
        // SAFETY: the driver refuses what is not registered.
        check(unsafe { (self.driver.host_unregister)(address as *mut c_void) })
    }

    /// cuMemcpyAsync of the shorter of both spans.
    pub fn copy(&self, destination: Span, source: Span, stream: &Stream) -> Result<()> {
        let size = destination.size.min(source.size) as usize;
        // SAFETY: both ranges are owned by this process.
        check(unsafe {
            (self.driver.copy_async)(destination.address, source.address, size, stream.raw())
        })
    }

    /// cuMemcpy3DAsync.
    pub fn copy_rect(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let copy = self.rect_record(destination, source, extent)?;
        // SAFETY: linear ends are spans over the whole rectangle; the driver checks array bounds.
        check(unsafe { (self.driver.copy_3d_async)(&copy, stream.raw()) })
    }

    /// The driver's record of a rectangular copy.
    pub(super) fn rect_record(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
    ) -> Result<CUDA_MEMCPY3D> {
        let [width, height, depth] = extent.map(|length| length as usize);
        // SAFETY: all zeros is a valid CUDA_MEMCPY3D (null pointers, zero sizes).
        let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
        (copy.WidthInBytes, copy.Height, copy.Depth) = (width, height, depth);
        match destination {
            RectEnd::Linear { first, pitch, rows } => {
                copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED as u32;
                copy.dstDevice = first.address;
                (copy.dstPitch, copy.dstHeight) = (*pitch as usize, *rows as usize);
            }
            RectEnd::Array {
                array,
                level,
                origin,
            } => {
                copy.dstMemoryType = CU_MEMORYTYPE_ARRAY as u32;
                copy.dstArray = self.level(array, *level)?;
                [copy.dstXInBytes, copy.dstY, copy.dstZ] = origin.map(|at| at as usize);
            }
        }
        match source {
            RectEnd::Linear { first, pitch, rows } => {
                copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED as u32;
                copy.srcDevice = first.address;
                (copy.srcPitch, copy.srcHeight) = (*pitch as usize, *rows as usize);
            }
            RectEnd::Array {
                array,
                level,
                origin,
            } => {
                copy.srcMemoryType = CU_MEMORYTYPE_ARRAY as u32;
                copy.srcArray = self.level(array, *level)?;
                [copy.srcXInBytes, copy.srcY, copy.srcZ] = origin.map(|at| at as usize);
            }
        }
        Ok(copy)
    }

    /// The plain array of a level.
    fn level(&self, array: &Array, level: u32) -> Result<*mut c_void> {
        if array.levels == 0 {
            return if level == 0 {
                Ok(array.raw())
            } else {
                Err(Status::INVALID_VALUE.into())
            };
        }
        let mut plain = ptr::null_mut();
        // SAFETY: out-parameter; the mipmapped array is alive.
        check(unsafe { (self.driver.mipmap_level)(&mut plain, array.raw(), level) })?;
        Ok(plain)
    }

    /// Sets `height` rows of `width` elements; `span` covers all of them.
    #[allow(clippy::too_many_arguments)]
    pub fn set(
        &self,
        span: Span,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: &Stream,
    ) -> Result<()> {
        let d = &self.driver;
        let (at, pitch, stream) = (span.address, pitch as usize, stream.raw());
        let (width, height) = (width as usize, height as usize);
        // SAFETY: the span covers every row.
        check(unsafe {
            match (element, height) {
                (1, 1) => (d.set_d8_async)(at, value as u8, width, stream),
                (2, 1) => (d.set_d16_async)(at, value as u16, width, stream),
                (4, 1) => (d.set_d32_async)(at, value, width, stream),
                (1, _) => (d.set_2d8_async)(at, pitch, value as u8, width, height, stream),
                (2, _) => (d.set_2d16_async)(at, pitch, value as u16, width, height, stream),
                (4, _) => (d.set_2d32_async)(at, pitch, value, width, height, stream),
                _ => Status::INVALID_VALUE.0,
            }
        })
    }

    /// cuArray3DCreate or cuMipmappedArrayCreate.
    pub fn array_create(&self, shape: &ArrayShape) -> Result<Array> {
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Depth: shape.depth as usize,
            Format: shape.format,
            NumChannels: shape.channels,
            Flags: shape.flags,
        };
        let mut array = ptr::null_mut();
        // SAFETY: a complete descriptor and an out-parameter.
        check(unsafe {
            if shape.levels == 0 {
                (self.driver.array_create)(&mut array, &descriptor)
            } else {
                (self.driver.mipmap_create)(&mut array, &descriptor, shape.levels)
            }
        })?;
        Ok(Array::new(array, shape.levels))
    }

    /// Destroys an array that no work uses any more.
    pub fn array_destroy(&self, array: Array) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe {
            if array.levels == 0 {
                (self.driver.array_destroy)(array.raw())
            } else {
                (self.driver.mipmap_destroy)(array.raw())
            }
        })
    }

    /// cuTexObjectCreate.
    pub fn texture_create(
        &self,
        resource: &Resource<'_>,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> Result<u64> {
        let resource = resource_record(resource);
        let mut border = [0.0; 4];
        for (colour, bytes) in border.iter_mut().zip(sampling.border.chunks_exact(4)) {
            *colour = f32::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let texture = CUDA_TEXTURE_DESC {
            addressMode: sampling.address_modes.map(|mode| mode as i32),
            filterMode: sampling.filter as i32,
            flags: sampling.flags,
            maxAnisotropy: sampling.anisotropy,
            mipmapFilterMode: sampling.mipmap_filter as i32,
            mipmapLevelBias: sampling.mipmap_bias,
            minMipmapLevelClamp: sampling.mipmap_min,
            maxMipmapLevelClamp: sampling.mipmap_max,
            borderColor: border,
            reserved: [0; 12],
        };
        let view = view.map(|view| CUDA_RESOURCE_VIEW_DESC {
            format: view.format as i32,
            width: view.extent[0] as usize,
            height: view.extent[1] as usize,
            depth: view.extent[2] as usize,
            firstMipmapLevel: view.levels_layers.first_level,
            lastMipmapLevel: view.levels_layers.last_level,
            firstLayer: view.levels_layers.first_layer,
            lastLayer: view.levels_layers.last_layer,
            reserved: [0; 16],
        });
        let view = view.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut object = 0;
        // SAFETY: complete records whose resource is alive or owned; an out-parameter.
        check(unsafe { (self.driver.texture_create)(&mut object, &resource, &texture, view) })?;
        Ok(object)
    }

    /// cuTexObjectDestroy of an object that [`texture_create`](Self::texture_create) gave.
    pub fn texture_destroy(&self, texture: u64) -> Result<()> {
        // SAFETY: the caller's set of objects held it.
        check(unsafe { (self.driver.texture_destroy)(texture) })
    }

    /// cuSurfObjectCreate.
    pub fn surface_create(&self, array: &Array) -> Result<u64> {
        let resource = resource_record(&Resource::Array(array));
        let mut object = 0;
        // SAFETY: a complete record whose array is alive; an out-parameter.
        check(unsafe { (self.driver.surface_create)(&mut object, &resource) })?;
        Ok(object)
    }

    /// cuSurfObjectDestroy of an object that [`surface_create`](Self::surface_create) gave.
    pub fn surface_destroy(&self, surface: u64) -> Result<()> {
        // SAFETY: the caller's set of objects held it.
        check(unsafe { (self.driver.surface_destroy)(surface) })
    }

    /// cuModuleLoadDataEx; returns the loader's log as well.
    pub fn module_load(&self, image: &[u8], options: &[(u32, u32)]) -> Result<(Module, String)> {
        const INFO_LOG: i32 = 3;
        const INFO_LOG_SIZE: i32 = 4;
        const ERROR_LOG: i32 = 5;
        const ERROR_LOG_SIZE: i32 = 6;
        const LOG_BYTES: usize = 8192;
        // PTX is text that a NUL ends; other images carry their sizes.
        let image = [image, &[0]].concat();
        let (mut information, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut names = vec![INFO_LOG, INFO_LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE];
        let mut values: Vec<*mut c_void> = vec![
            information.as_mut_ptr().cast(),
            LOG_BYTES as *mut c_void,
            errors.as_mut_ptr().cast(),
            LOG_BYTES as *mut c_void,
        ];
        for &(name, value) in options {
            names.push(name as i32);
            values.push(value as usize as *mut c_void);
        }
        let mut module = ptr::null_mut();
        // SAFETY: the image is NUL-ended and the log buffers are as long as said; the options
        // are numbers. A damaged binary image may make the driver fail in this process, which
        // serves one session only.
        let loaded = check(unsafe {
            (self.driver.module_load)(
                &mut module,
                image.as_ptr().cast(),
                names.len() as u32,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        match loaded {
            Ok(()) => Ok((Module::new(module), log_text(&information))),
            Err(error) => Err(Error::new(error.status, log_text(&errors))),
        }
    }

    /// cuModuleUnload of a module whose kernels are over.
    pub fn module_unload(&self, module: Module) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.module_unload)(module.raw()) })
    }

    /// cuModuleGetFunction.
    pub fn function(&self, module: &Module, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive; an out-parameter.
        check(unsafe {
            (self.driver.module_function)(&mut function, module.raw(), name.as_ptr())
        })?;
        Ok(Function::new(function))
    }

    /// cuModuleGetGlobal.
    pub fn global(&self, module: &Module, name: &CStr) -> Result<(u64, u64)> {
        let (mut address, mut size) = (0, 0);
        // SAFETY: the module is alive; out-parameters.
        check(unsafe {
            (self.driver.module_global)(&mut address, &mut size, module.raw(), name.as_ptr())
        })?;
        Ok((address, size as u64))
    }

    /// cuFuncGetAttribute.
    pub fn function_attribute(&self, function: &Function, attribute: c_int) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the function is alive; an out-parameter.
        check(unsafe { (self.driver.function_attribute)(&mut value, attribute, function.raw()) })?;
        Ok(value)
    }

    /// cuFuncGetParamInfo: offset and size.
    pub fn function_parameter(&self, function: &Function, index: usize) -> Result<(usize, usize)> {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is alive; out-parameters.
        check(unsafe {
            (self.driver.function_parameter)(function.raw(), index, &mut offset, &mut size)
        })?;
        Ok((offset, size))
    }

    /// cuFuncSetAttribute.
    pub fn function_set_attribute(
        &self,
        function: &Function,
        name: c_int,
        value: i32,
    ) -> Result<()> {
        // SAFETY: the function is alive.
        check(unsafe { (self.driver.function_set_attribute)(function.raw(), name, value) })
    }

    /// cuFuncSetCacheConfig.
    pub fn function_set_cache_config(&self, function: &Function, config: c_int) -> Result<()> {
        // SAFETY: the function is alive.
        check(unsafe { (self.driver.function_set_cache_config)(function.raw(), config) })
    }

    /// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags.
    pub fn occupancy_blocks(
        &self,
        function: &Function,
        threads: i32,
        shared: u64,
        flags: u32,
    ) -> Result<i32> {
        let mut blocks = 0;
        // SAFETY: the function is alive; an out-parameter.
        check(unsafe {
            (self.driver.occupancy_blocks)(
                &mut blocks,
                function.raw(),
                threads,
                shared as usize,
                flags,
            )
        })?;
        Ok(blocks)
    }

    /// cuOccupancyAvailableDynamicSMemPerBlock.
    pub fn occupancy_shared(&self, function: &Function, blocks: i32, threads: i32) -> Result<u64> {
        let mut size = 0;
        // SAFETY: the function is alive; an out-parameter.
        check(unsafe {
            (self.driver.occupancy_shared)(&mut size, function.raw(), blocks, threads)
        })?;
        Ok(size as u64)
    }

    /// cuLaunchKernelEx with a parameter buffer, whose length the caller has
    /// compared with the function's parameters.
    pub fn launch(&self, launch: &LaunchConfig<'_>) -> Result<()> {
        const PARAMETERS: *mut c_void = ptr::without_provenance_mut(1);
        const PARAMETERS_SIZE: *mut c_void = ptr::without_provenance_mut(2);
        let mut attributes = [attribute(2, cudaLaunchAttributeValue { cooperative: 1 }); 2];
        let mut count = usize::from(launch.cooperative);
        if launch.cluster != [0; 3] {
            let [x, y, z] = launch.cluster;
            attributes[count] = attribute(
                4,
                cudaLaunchAttributeValue {
                    clusterDim: dim3 { x, y, z },
                },
            );
            count += 1;
        }
        let config = CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.dynamic_shared,
            hStream: launch.stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
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
            (self.driver.launch)(
                &config,
                launch.function.raw(),
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        })
    }

    /// cuLaunchHostFunc.
    pub fn host_function(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        unsafe extern "C" fn run(argument: *mut c_void) {
            // SAFETY: the pointer made below, given back once.
            let function = unsafe { Box::from_raw(argument.cast::<HostFunction>()) };
            function();
        }
        let argument = Box::into_raw(Box::new(function));
        // SAFETY: the driver calls `run` once with `argument`.
        let launched =
            check(unsafe { (self.driver.launch_host)(stream.raw(), run, argument.cast()) });
        if launched.is_err() {
            // SAFETY: the driver refused, so `run` will not take it.
            drop(unsafe { Box::from_raw(argument) });
        }
        launched
    }

    /// cuStreamCreateWithPriority.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        let mut stream = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.stream_create)(&mut stream, flags, priority) })?;
        Ok(Stream::new(stream))
    }

    /// cuStreamDestroy.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.stream_destroy)(stream.raw()) })
    }

    /// cuStreamQuery.
    pub fn stream_query(&self, stream: &Stream) -> Result<bool> {
        // SAFETY: the stream is alive.
        check_query(unsafe { (self.driver.stream_query)(stream.raw()) })
    }

    /// cuStreamSynchronize.
    pub fn stream_synchronize(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the stream is alive.
        check(unsafe { (self.driver.stream_synchronize)(stream.raw()) })
    }

    /// cuStreamWaitEvent.
    pub fn stream_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.stream_wait)(stream.raw(), event.raw(), 0) })
    }

    /// cuEventCreate.
    pub fn event_create(&self, flags: u32) -> Result<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.event_create)(&mut event, flags) })?;
        Ok(Event::new(event))
    }

    /// cuEventDestroy.
    pub fn event_destroy(&self, event: Event) -> Result<()> {
        // SAFETY: taken by value: not used again.
        check(unsafe { (self.driver.event_destroy)(event.raw()) })
    }

    /// cuEventRecord.
    pub fn event_record(&self, event: &Event, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.event_record)(event.raw(), stream.raw()) })
    }

    /// cuEventQuery.
    pub fn event_query(&self, event: &Event) -> Result<bool> {
        // SAFETY: the event is alive.
        check_query(unsafe { (self.driver.event_query)(event.raw()) })
    }

    /// cuEventElapsedTime.
    pub fn event_elapsed(&self, start: &Event, end: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; an out-parameter.
        check(unsafe { (self.driver.event_elapsed)(&mut milliseconds, start.raw(), end.raw()) })?;
        Ok(milliseconds)
    }

    /// cuCtxSynchronize.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: no arguments.
        check(unsafe { (self.driver.ctx_synchronize)() })
    }

    /// cuCtxSetLimit.
    pub fn set_limit(&self, limit: c_int, value: u64) -> Result<()> {
        // SAFETY: numbers.
        check(unsafe { (self.driver.ctx_set_limit)(limit, value as usize) })
    }

    /// cuCtxGetLimit.
    pub fn limit(&self, limit: c_int) -> Result<u64> {
        let mut value = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.ctx_get_limit)(&mut value, limit) })?;
        Ok(value as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing of this context is used any more; failures leave
        // nothing to undo.
        unsafe {
            (self.driver.ctx_synchronize)();
            if self.arena != 0 {
                (self.driver.mem_address_free)(self.arena, self.arena_size as usize);
            }
            (self.driver.primary_release)(self.device);
        }
    }
}

impl Driver {
    /// cuDriverGetVersion.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver_version)(&mut version) })?;
        Ok(version)
    }

    /// The devices, as cuDeviceGet names them.
    pub fn devices(&self) -> Result<Vec<c_int>> {
        let mut count = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.device_count)(&mut count) })?;
        (0..count)
            .map(|ordinal| {
                let mut device = 0;
                // SAFETY: an out-parameter and an ordinal below the count.
                check(unsafe { (self.device_get)(&mut device, ordinal) })?;
                Ok(device)
            })
            .collect()
    }

    /// cuDeviceGetName.
    pub fn name(&self, device: c_int) -> Result<String> {
        // SAFETY: the function fills at most the bytes it is told.
        text(256, |buffer, size| unsafe {
            (self.device_name)(buffer, size, device)
        })
    }

    /// cuDeviceGetPCIBusId.
    pub fn pci_bus_id(&self, device: c_int) -> Result<String> {
        // SAFETY: the function fills at most the bytes it is told.
        text(32, |buffer, size| unsafe {
            (self.device_pci_bus_id)(buffer, size, device)
        })
    }

    /// cuDeviceGetUuid.
    pub fn uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let mut uuid = paragpu_abi::CUuuid { bytes: [0; 16] };
        // SAFETY: an out-parameter.
        check(unsafe { (self.device_uuid)(&mut uuid, device) })?;
        Ok(uuid.bytes)
    }

    /// cuDeviceTotalMem, in bytes.
    pub fn total_memory(&self, device: c_int) -> Result<u64> {
        let mut size = 0;
        // SAFETY: an out-parameter.
        check(unsafe { (self.device_total_mem)(&mut size, device) })?;
        Ok(size as u64)
    }

    /// cuDeviceGetAttribute; `None` for one the driver does not know.
    pub fn attribute(&self, device: c_int, attribute: c_int) -> Option<i32> {
        let mut value = 0;
        // SAFETY: an out-parameter; unknown attributes are refused.
        check(unsafe { (self.device_attribute)(&mut value, attribute, device) }).ok()?;
        Some(value)
    }
}

/// Runs a function that writes a C string.
fn text(size: usize, fill: impl FnOnce(*mut c_char, c_int) -> u32) -> Result<String> {
    let mut buffer = vec![0u8; size];
    check(fill(buffer.as_mut_ptr().cast(), size as c_int))?;
    Ok(log_text(&buffer))
}

/// The text before the first NUL.
fn log_text(buffer: &[u8]) -> String {
    let end = buffer
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(buffer.len());
    String::from_utf8_lossy(buffer.get(..end).unwrap_or_default()).into_owned()
}

/// A launch attribute.
fn attribute(id: i32, val: cudaLaunchAttributeValue) -> cudaLaunchAttribute {
    cudaLaunchAttribute {
        id,
        pad: [0; 4],
        val,
    }
}

/// The driver's record of a resource.
fn resource_record(resource: &Resource<'_>) -> CUDA_RESOURCE_DESC {
    let mut record = CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_ARRAY,
        res: CUresource { reserved: [0; 32] },
        flags: 0,
    };
    match resource {
        Resource::Array(array) if array.levels == 0 => record.res.array = array.raw(),
        Resource::Array(array) => {
            record.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
            record.res.mipmap = array.raw();
        }
        Resource::Linear(span, linear) if linear.height == 0 => {
            record.resType = CU_RESOURCE_TYPE_LINEAR;
            record.res.linear = CUresourceLinear {
                devPtr: span.address,
                format: linear.format,
                numChannels: linear.channels,
                sizeInBytes: span.size as usize,
            };
        }
        Resource::Linear(span, linear) => {
            record.resType = CU_RESOURCE_TYPE_PITCH2D;
            record.res.pitch2D = CUresourcePitch2D {
                devPtr: span.address,
                format: linear.format,
                numChannels: linear.channels,
                width: linear.width as usize,
                height: linear.height as usize,
                pitchInBytes: linear.pitch as usize,
            };
        }
    }
    record
}

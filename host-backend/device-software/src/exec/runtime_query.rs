//! What kernels ask CUDA's device runtime about the device and about kernels.

use std::sync::Arc;

use super::block::Env;
use super::runtime_call::kernel_at;
use crate::attributes::DRIVER_VERSION;
use crate::kernel::Kernel;
use crate::launched::{INVALID_DEVICE, INVALID_FUNCTION, INVALID_VALUE, UNSUPPORTED_LIMIT};
use crate::program::RuntimeCall;
use paragpu_abi as abi;

/// cudaFuncCachePreferNone.
const PREFERS_NONE: u32 = 0;
/// cudaSharedMemBankSizeFourByte.
const BANKS_OF_FOUR_BYTES: u32 = 1;

/// The words of the answer, or a cudaError. `given` are the arguments after the address of
/// the answer.
pub(super) fn answer(env: &Env<'_>, query: RuntimeCall, given: [u64; 3]) -> Result<Vec<u32>, u32> {
    let properties = &env.grid.device.properties;
    let [first, second, third] = given;
    Ok(match query {
        // A kernel knows only its own device.
        RuntimeCall::GetDevice => vec![0],
        RuntimeCall::GetDeviceCount => vec![1],
        RuntimeCall::DeviceGetAttribute if second != 0 => return Err(INVALID_DEVICE),
        RuntimeCall::DeviceGetAttribute => {
            let value = properties.attribute(first as u32).ok_or(INVALID_VALUE)?;
            vec![value.cast_unsigned()]
        }
        RuntimeCall::DeviceGetLimit => {
            let value = properties.limits.get(first as u32);
            halves(value.ok_or(UNSUPPORTED_LIMIT)?).into()
        }
        RuntimeCall::DeviceGetCacheConfig => vec![PREFERS_NONE],
        RuntimeCall::DeviceGetSharedMemConfig => vec![BANKS_OF_FOUR_BYTES],
        RuntimeCall::RuntimeGetVersion => vec![DRIVER_VERSION.cast_unsigned()],
        RuntimeCall::FuncGetAttributes => attributes(&kernel(env, first)?),
        RuntimeCall::Occupancy => {
            let blocks = kernel(env, first)?.occupancy(second as u32, third);
            vec![blocks.ok_or(INVALID_VALUE)?]
        }
        _ => return Err(INVALID_VALUE),
    })
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The kernel with this address. It has the attributes that its code gives it: what the
/// program sets concerns its own launches.
fn kernel(env: &Env<'_>, address: u64) -> Result<Kernel, u32> {
    let func = kernel_at(env, address).ok_or(INVALID_FUNCTION)?;
    Ok(Kernel::new(0, Arc::clone(&env.grid.program), None, func))
}

/// A `cudaFuncAttributes`.
fn attributes(kernel: &Kernel) -> Vec<u32> {
    let known = kernel.attributes();
    let get = |attribute: i32| {
        let mut found = known
            .iter()
            .filter(|(n, _)| *n == attribute.cast_unsigned());
        found.next().map_or(0, |&(_, value)| value.cast_unsigned())
    };
    // The first three are of 64 bits.
    let sizes = [
        abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        abi::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
        abi::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
    ];
    let others = [
        abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        abi::CU_FUNC_ATTRIBUTE_NUM_REGS,
        abi::CU_FUNC_ATTRIBUTE_PTX_VERSION,
        abi::CU_FUNC_ATTRIBUTE_BINARY_VERSION,
        abi::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
        abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        abi::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET,
        abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        abi::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        abi::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    ];
    let mut words: Vec<u32> = sizes.iter().flat_map(|&n| [get(n), 0]).collect();
    words.extend(others.map(get));
    // Its reserved fields are zeros.
    words.resize(size_of::<abi::cudaFuncAttributes>() / 4, 0);
    words
}

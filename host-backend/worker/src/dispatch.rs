//! From a decoded call to what executes it: every call of the table, by name.

use paragpu_protocol::call::Capability;
use paragpu_protocol::codec::{Bytes, Text};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Call;
use paragpu_protocol::types::{FunctionInfo, encode_pairs};

use crate::error::{Fault, fail};
use crate::session::Session;
use crate::session::link::At;

/// The bulk token that a call names.
fn token(call: &Call<'_>) -> u32 {
    match call {
        Call::Copy(call) => call.token,
        Call::CopyRect(call) => call.token,
        _ => 0,
    }
}

impl Session {
    /// Executes a call and answers it, or lets it wait. True where it did
    /// what the table says it does.
    pub(crate) fn dispatch(&mut self, at: At, call: &Call<'_>) -> Result<bool, Fault> {
        if let Some(lost) = self.errors.sticky()
            && !call.info().survives
        {
            let lost = lost.clone();
            self.copies.tokens.fail(token(call), lost.clone());
            self.answer_failure(at, &lost)?;
            return Ok(false);
        }
        if call.info().capability == Capability::Window && !self.host.can_pin() {
            let why = format!("{} needs a window", call.info().name);
            return self.answer::<()>(at, fail(Status::NOT_SUPPORTED, why));
        }
        match call {
            Call::Ping(call) => self.answer(at, Ok(call.value)),
            Call::SnapshotDevice(call) => self.snapshot_device(at, call.ordinal),

            Call::MemMap(call) => {
                let outcome = self.mem_map(call);
                self.progress(at, outcome)
            }
            Call::MemUnmap(call) => {
                let outcome = self.mem_unmap(call);
                self.answer(at, outcome)
            }
            Call::MemGetInfo(_) => {
                let outcome = self.mem_get_info();
                self.answer(at, outcome)
            }
            Call::HostMap(call) => {
                let outcome = self.host_map(call);
                self.answer(at, outcome)
            }
            Call::HostUnmap(call) => {
                let outcome = self.host_unmap(call);
                self.progress(at, outcome)
            }
            Call::ShadowCreate(call) => {
                let outcome = self.shadow_create(call);
                self.answer(at, outcome)
            }
            Call::ShadowDestroy(call) => {
                let outcome = self.shadow_destroy(call);
                self.progress(at, outcome)
            }
            Call::ShadowWrite(call) => {
                let outcome = self.shadow_write(call);
                self.answer(at, outcome)
            }
            Call::ShadowPatch(call) => {
                let outcome = self.shadow_patch(call);
                self.answer(at, outcome)
            }
            Call::ShadowRead(call) => {
                let outcome = self.shadow_read(at, call);
                self.answer(at, outcome)
            }

            Call::CopyToDevice(call) => {
                let outcome = self.copy_to_device(call);
                self.answer(at, outcome)
            }
            Call::CopyFromDevice(call) => {
                let outcome = self.copy_from_device(call);
                self.progress(at, outcome)
            }
            Call::Copy(call) => {
                let outcome = self.copy(at, call);
                self.answer_copy(at, call.token, outcome)
            }
            Call::CopyRect(call) => {
                let outcome = self.copy_rect(at, call);
                self.answer_copy(at, call.token, outcome)
            }
            Call::CopyRectToDevice(call) => {
                let outcome = self.copy_rect_to_device(call);
                self.answer(at, outcome)
            }
            Call::CopyRectFromDevice(call) => {
                let outcome = self.copy_rect_from_device(call);
                self.progress(at, outcome)
            }
            Call::Memset(call) => {
                let outcome = self.memset(call);
                self.answer(at, outcome)
            }
            Call::WaitToken(call) => self.wait_token(at, call),
            Call::CopyPagesToDevice(call) => {
                let outcome = self.copy_pages_to_device(call);
                self.progress(at, outcome)
            }
            Call::CopyPagesFromDevice(call) => {
                let outcome = self.copy_pages_from_device(call);
                self.progress(at, outcome)
            }
            Call::CheckPages(call) => {
                let outcome = self.check_pages(call);
                self.answer(at, outcome)
            }

            Call::ArrayCreate(call) => {
                let outcome = self.array_create(call);
                self.answer(at, outcome)
            }
            Call::ArrayDestroy(call) => {
                let outcome = self.array_destroy(call);
                self.answer(at, outcome)
            }
            Call::TextureCreate(call) => {
                let outcome = self.texture_create(call);
                self.answer(at, outcome)
            }
            Call::TextureDestroy(call) => {
                let outcome = self.texture_destroy(call);
                self.answer(at, outcome)
            }
            Call::SurfaceCreate(call) => {
                let outcome = self.surface_create(call);
                self.answer(at, outcome)
            }
            Call::SurfaceDestroy(call) => {
                let outcome = self.surface_destroy(call);
                self.answer(at, outcome)
            }

            Call::ImageQuery(call) => {
                let held = self.objects.modules.images().holds(&call.hash, call.size);
                self.answer(at, Ok(held))
            }
            Call::ImageWrite(call) => {
                let outcome = self.objects.modules.images().write(
                    &call.hash,
                    call.size,
                    call.offset,
                    call.data.0,
                );
                self.answer(at, outcome)
            }
            Call::ModuleLoad(call) => match self.module_load(call) {
                Ok(log) => self.answer(at, Ok(Text(&log))),
                Err(fault) => self.answer::<()>(at, Err(fault)),
            },
            Call::ModuleUnload(call) => {
                let outcome = self.module_unload(call);
                self.answer(at, outcome)
            }
            Call::FunctionGet(call) => match self.function_get(call) {
                Ok(function) => {
                    let attributes = function.attributes.iter();
                    let attributes = encode_pairs(
                        attributes.map(|(name, value)| (*name, value.cast_unsigned())),
                    );
                    let parameters = encode_pairs(function.parameters.iter().copied());
                    let info = FunctionInfo {
                        attributes: Bytes(&attributes),
                        parameters: Bytes(&parameters),
                    };
                    self.answer(at, Ok(info))
                }
                Err(fault) => self.answer::<()>(at, Err(fault)),
            },
            Call::FunctionSetAttribute(call) => {
                let outcome = self.function_set_attribute(call);
                self.answer(at, outcome)
            }
            Call::FunctionSetCacheConfig(call) => {
                let outcome = self.function_set_cache_config(call);
                self.answer(at, outcome)
            }
            Call::GlobalGet(call) => {
                let outcome = self.global_get(call);
                self.answer(at, outcome)
            }
            Call::OccupancyBlocks(call) => {
                let outcome = self.occupancy_blocks(call);
                self.answer(at, outcome)
            }
            Call::OccupancyDynamicShared(call) => {
                let outcome = self.occupancy_dynamic_shared(call);
                self.answer(at, outcome)
            }

            Call::Launch(call) => {
                let outcome = self.launch(call);
                self.answer(at, outcome)
            }

            Call::StreamCreate(call) => {
                let outcome = self.stream_create(call);
                self.answer(at, outcome)
            }
            Call::StreamDestroy(call) => {
                let outcome = self.stream_destroy(call);
                self.answer(at, outcome)
            }
            Call::StreamSynchronize(call) => {
                let outcome = self.stream_synchronize(call);
                self.progress(at, outcome)
            }
            Call::StreamQuery(call) => {
                let outcome = self.stream_query(call);
                self.answer(at, outcome)
            }
            Call::StreamWaitEvent(call) => {
                let outcome = self.stream_wait_event(call);
                self.answer(at, outcome)
            }

            Call::EventCreate(call) => {
                let outcome = self.event_create(call);
                self.answer(at, outcome)
            }
            Call::EventDestroy(call) => {
                let outcome = self.event_destroy(call);
                self.answer(at, outcome)
            }
            Call::EventRecord(call) => {
                let outcome = self.event_record(call);
                self.answer(at, outcome)
            }
            Call::EventSynchronize(call) => {
                let outcome = self.event_synchronize(call);
                self.progress(at, outcome)
            }
            Call::EventQuery(call) => {
                let outcome = self.event_query(call);
                self.answer(at, outcome)
            }
            Call::EventElapsed(call) => {
                let outcome = self.event_elapsed(call);
                self.answer(at, outcome)
            }

            Call::ContextSynchronize(_) => {
                let outcome = self.context_synchronize();
                self.progress(at, outcome)
            }
            Call::ContextSetLimit(call) => {
                let outcome = self.context_set_limit(call);
                self.answer(at, outcome)
            }
            Call::ContextGetLimit(call) => {
                let outcome = self.context_get_limit(call);
                self.answer(at, outcome)
            }

            Call::HostFuncLaunch(call) => {
                let outcome = self.host_func_launch(call);
                self.answer(at, outcome)
            }
            Call::HostFuncDone(call) => {
                let outcome = self.host_func_done(call);
                self.answer(at, outcome)
            }

            Call::GraphBegin(call) => {
                let outcome = self.graph_begin(call);
                self.answer(at, outcome)
            }
            Call::GraphNodes(call) => {
                let outcome = self.graph_nodes(call);
                self.answer(at, outcome)
            }
            Call::GraphInstantiate(call) => {
                let outcome = self.graph_instantiate(call);
                self.answer(at, outcome)
            }
            Call::GraphLaunch(call) => {
                let outcome = self.graph_launch(call);
                self.answer(at, outcome)
            }
            Call::GraphNodeUpdate(call) => {
                let outcome = self.graph_node_update(call);
                self.answer(at, outcome)
            }
            Call::GraphNodeEnable(call) => {
                let outcome = self.graph_node_enable(call);
                self.answer(at, outcome)
            }
            Call::GraphDestroy(call) => {
                let outcome = self.graph_destroy(call);
                self.answer(at, outcome)
            }
        }
    }

    fn snapshot_device(&mut self, at: At, ordinal: u32) -> Result<bool, Fault> {
        if ordinal != self.gpu.ordinal() {
            let why = format!(
                "this session is of device {}, not {ordinal}",
                self.gpu.ordinal()
            );
            return self.answer::<()>(at, fail(Status::INVALID_DEVICE, why));
        }
        if at.slot != 0 {
            let snapshot = self.gpu.snapshot().to_vec();
            let status = Status::SUCCESS.0.to_le_bytes();
            self.reply(at, &status, &snapshot)?;
        }
        Ok(true)
    }
}

//! KubeVirt's gRPC for hooks: virt-launcher calls it before it defines the VM's
//! domain, and when the VM has ended.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use paragpu_protocol::chain;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::Error;
use crate::grpc::info::info_server::{self, InfoServer};
use crate::grpc::{
    OnDefineDomainParams, OnDefineDomainResult, ShutdownParams, ShutdownResult, info, v1alpha1,
    v1alpha2, v1alpha3,
};
use crate::plugin::{SHUTDOWN_TIMEOUT, listen};
use crate::vm::{Options, Vm};

/// The hook's socket, in the directory that virt-launcher searches.
pub const SOCKET: &str = "paragpu.sock";

/// The hook. It implements each version of the interface.
#[derive(Debug, Clone)]
struct Hook {
    vm: Arc<Mutex<Vm>>,
    /// Becomes true when the VM has ended.
    ended: watch::Sender<bool>,
}

impl Hook {
    /// Adds the VM's connection to its claim to the domain.
    async fn define(&self, domain: Vec<u8>) -> Result<Vec<u8>, Status> {
        let vm = Arc::clone(&self.vm);
        // In a blocking thread, because it waits for a process.
        let defined = tokio::task::spawn_blocking(move || vm.lock().define(&domain)).await;
        match defined.map_err(|error| Status::internal(error.to_string()))? {
            Ok(domain) => {
                tracing::info!("the VM can reach its claim over vsock");
                Ok(domain.into_bytes())
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "the VM cannot be defined");
                Err(Status::failed_precondition(format!("paragpu: {error}")))
            }
        }
    }
}

#[tonic::async_trait]
impl info_server::Info for Hook {
    async fn info(
        &self,
        _: Request<info::InfoParams>,
    ) -> Result<Response<info::InfoResult>, Status> {
        let point = |name: &str| info::HookPoint {
            name: name.into(),
            priority: 0,
        };
        Ok(Response::new(info::InfoResult {
            name: "paragpu".into(),
            hook_points: vec![point("OnDefineDomain"), point("Shutdown")],
            versions: ["v1alpha3", "v1alpha2", "v1alpha1"].map(Into::into).into(),
        }))
    }
}

/// Implements a version of the interface. All versions define domains alike.
macro_rules! version {
    ($version:ident, $($shutdown:tt)*) => {
        #[tonic::async_trait]
        impl $version::callbacks_server::Callbacks for Hook {
            async fn on_define_domain(
                &self,
                request: Request<OnDefineDomainParams>,
            ) -> Result<Response<OnDefineDomainResult>, Status> {
                let domain_xml = self.define(request.into_inner().domain_xml).await?;
                Ok(Response::new(OnDefineDomainResult { domain_xml }))
            }

            $($shutdown)*
        }
    };
}

version!(v1alpha1,);
version!(v1alpha2,);
version!(
    v1alpha3,
    async fn shutdown(
        &self,
        _: Request<ShutdownParams>,
    ) -> Result<Response<ShutdownResult>, Status> {
        self.ended.send_replace(true);
        Ok(Response::new(ShutdownResult {}))
    }
);

/// Serves virt-launcher until the VM has ended, or until `end`.
///
/// # Errors
/// [`Error::File`], [`Error::Sockets`].
pub fn serve(options: Options, end: impl Future<Output = ()>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Sockets(error.to_string()))?;
    let socket = options.directory.join(SOCKET);
    let done = runtime.block_on(serve_until(options, socket.clone(), end));
    let _ = std::fs::remove_file(&socket);
    runtime.shutdown_background();
    done
}

async fn serve_until(
    options: Options,
    socket: PathBuf,
    end: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (ended, over) = watch::channel(false);
    let hook = Hook {
        vm: Arc::new(Mutex::new(Vm::new(options))),
        ended: ended.clone(),
    };
    let incoming = listen(&socket)?;
    // virt-launcher may run as another user of the Pod.
    let open = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(&socket, open).map_err(Error::file(&socket))?;
    let is_over = |mut over: watch::Receiver<bool>| async move {
        drop(over.wait_for(|over| *over).await);
    };
    let first = is_over(over.clone());
    let stop = async move {
        tokio::select! {
            () = first => {}
            () = end => {}
        }
        ended.send_replace(true);
    };
    // A client that keeps its connection open must not keep the Pod alive.
    let late = async move {
        is_over(over).await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    let served = Server::builder()
        .add_service(InfoServer::new(hook.clone()))
        .add_service(v1alpha1::callbacks_server::CallbacksServer::new(
            hook.clone(),
        ))
        .add_service(v1alpha2::callbacks_server::CallbacksServer::new(
            hook.clone(),
        ))
        .add_service(v1alpha3::callbacks_server::CallbacksServer::new(hook))
        .serve_with_incoming_shutdown(incoming, stop);
    let done = tokio::select! {
        done = served => done,
        () = late => Ok(()),
    };
    done.map_err(|error| Error::Sockets(error.to_string()))
}

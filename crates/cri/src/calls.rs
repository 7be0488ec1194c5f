//! The methods of CRI v1 that Ferry uses, listed once; the trait, the client and the server are made from the list.

use std::pin::Pin;

use futures::Stream;
use tonic::Status;

use crate::v1;

/// Container events as they happen, until the runtime or the connection ends.
pub type Events = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send + 'static>>;

/// Hands the unary methods of both services to the macro `$then`, as `method(Request) -> Response` lists.
macro_rules! with_calls {
    ($then:ident) => {
        $then! {
            runtime {
                version(VersionRequest) -> VersionResponse,
                run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse,
                stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse,
                remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse,
                pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse,
                list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse,
                create_container(CreateContainerRequest) -> CreateContainerResponse,
                start_container(StartContainerRequest) -> StartContainerResponse,
                stop_container(StopContainerRequest) -> StopContainerResponse,
                remove_container(RemoveContainerRequest) -> RemoveContainerResponse,
                list_containers(ListContainersRequest) -> ListContainersResponse,
                container_status(ContainerStatusRequest) -> ContainerStatusResponse,
                update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse,
                reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse,
                exec_sync(ExecSyncRequest) -> ExecSyncResponse,
                exec(ExecRequest) -> ExecResponse,
                attach(AttachRequest) -> AttachResponse,
                port_forward(PortForwardRequest) -> PortForwardResponse,
                container_stats(ContainerStatsRequest) -> ContainerStatsResponse,
                list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse,
                update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse,
                status(StatusRequest) -> StatusResponse,
                runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse,
            }
            image {
                list_images(ListImagesRequest) -> ListImagesResponse,
                image_status(ImageStatusRequest) -> ImageStatusResponse,
                pull_image(PullImageRequest) -> PullImageResponse,
                remove_image(RemoveImageRequest) -> RemoveImageResponse,
                image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse,
            }
        }
    };
}
pub(crate) use with_calls;

macro_rules! cri_trait {
    (runtime { $($r:ident($rq:ident) -> $rs:ident,)* } image { $($i:ident($iq:ident) -> $is:ident,)* }) => {
        /// A CRI v1 runtime: its `RuntimeService` and `ImageService` as one object.
        #[async_trait::async_trait]
        pub trait Cri: Send + Sync + 'static {
            $(async fn $r(&self, request: v1::$rq) -> Result<v1::$rs, Status>;)*
            $(async fn $i(&self, request: v1::$iq) -> Result<v1::$is, Status>;)*
            /// `GetContainerEvents`. Answers UNIMPLEMENTED where the runtime cannot push events.
            async fn events(&self) -> Result<Events, Status>;
        }
    };
}
with_calls!(cri_trait);

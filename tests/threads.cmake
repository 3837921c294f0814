# What ThreadSanitizer can say something of: unit tests that start threads, and all of several processes. The others
# are neither built nor run with it. A unit test that starts a thread and is not named here ends with an error
# (support/lone_thread.c), so none is left out by oversight.
set(gradsync_threaded
  test_core_log_thread test_core_metrics test_core_thread test_kernels_activation test_kernels_attention test_kernels_batchnorm
  test_kernels_cast test_kernels_device test_kernels_elementwise test_kernels_embedding test_kernels_half
  test_kernels_kernel_times test_kernels_layernorm test_kernels_loss test_kernels_low_rank test_kernels_many test_kernels_matmul
  test_kernels_optim test_kernels_pool test_kernels_quantize test_kernels_reduce test_kernels_residuals
  test_kernels_table test_kernels_matmul_plain test_gradsync_early_step test_gradsync_grad_scaler
  test_gradsync_grad_squares test_gradsync_local_coalesce test_gradsync_optimizer test_gradsync_options test_gradsync_host_process
  test_coordinator_sights test_coordinator_writer test_coordinator_leftovers test_coordinator_left_mark test_rpc_audit test_rpc_key_gate test_rpc_refusals test_worker_own_key test_rpc_rpc_client test_rpc_rpc_server test_rpc_versions test_api_prometheus test_api_api test_api_http_server test_api_sse test_api_access test_api_budget test_api_crowd test_api_tokens
  test_worker_data_loader test_worker_lookout test_worker_lead test_worker_gpt2 test_worker_agent test_worker_agent_reports test_worker_member test_worker_outbox test_worker_rendezvous
  test_worker_shared_place test_worker_slot test_worker_timeline test_worker_trainer test_worker_batch_stage test_worker_settling
)

# gradsync_watch_threads(NAME LABELS): adds `threads` to LABELS, in the caller, where NAME belongs there.
function(gradsync_watch_threads name labels)
  if(name IN_LIST gradsync_threaded OR "${${labels}}" MATCHES "multiprocess|fault")
    set(${labels} ${${labels}} threads PARENT_SCOPE)
    set_property(GLOBAL APPEND PROPERTY gradsync_thread_tests ${name})
  elseif("unit" IN_LIST ${labels})
    # -u: taken from its library before the one that needs it is seen.
    target_link_options(${name} PRIVATE -Wl,--wrap=pthread_create,-u,__wrap_pthread_create)
  endif()
endfunction()

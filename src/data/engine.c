#include "data/engine.h"

kvf_status kvf_engine_open(const kvf_settings *settings, kvf_flavour flavour,
                           const kvf_engine_callbacks *callbacks, kvf_engine **engine,
                           kvf_error *error)
{
    kvf_status status = settings->engine == KVF_ENGINE_LOOP
                            ? kvf_loop_open(settings, callbacks, engine, error)
                            : kvf_ucx_open(settings, flavour, callbacks, engine, error);
    if (status != KVF_OK || settings->fault[0] == '\0')
        return status;
    status = kvf_fault_open(settings->fault, callbacks, engine, error);
    if (status != KVF_OK) {
        (*engine)->operations->close(*engine);
        *engine = NULL;
    }
    return status;
}

# How `sam build` makes the layer with what the Glue jobs install. Their Python is Glue's, not that of
# the functions: `ContextPath: !Sub layers/glue/${GlueVersion}` chooses the folder whose Makefile
# includes this one, and the folder's name says which Glue to build for.

here := $(dir $(realpath $(lastword $(MAKEFILE_LIST))))
glue := $(notdir $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST))))))

.PHONY: build-JobPackagesLayer

build-JobPackagesLayer:
	python3 "$(here)bundle_wheels.py" --glue $(glue) \
		--into "$(ARTIFACTS_DIR)/python/lakesync_job_packages"

"""The clients of the SDKs, one module per SDK or cloud. A module is loaded when a model needs it."""

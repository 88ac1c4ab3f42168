"""CPU kernels: C++ sources, their numpy reference (`reference`) and the typed entry for arrays (`bindings`)."""

models/make_models.py"±
linear_relu
x€2
weight€`2!
linear_relu/weights.safetensors.
bias`2!
linear_relu/weights.safetensors"
layerxweightbiasyR*
y`
"""k-NN attention over tokens by Triton kernels, registered as the implementation "triton".

In the lab until a GPU has shown that they are right and faster than torch's operations.
"""

from nearwise.conditions import require_extra

require_extra('The implementation "triton"', "triton", "triton", of="nearwise-lab")

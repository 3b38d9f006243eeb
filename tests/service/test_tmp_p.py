import asyncio, pytest
from tests.service.test_service import *
from tests.service.test_service import PREAMBLE
pytestmark = pytest.mark.virtual_time
@pytest.mark.parametrize("policy",[HedgePolicy.race(2),HedgePolicy.adaptive(),HedgePolicy.adaptive(commit="first_sentence")])
async def test_x(policy):
    both=Tool()
    t=asyncio.get_running_loop().time()
    line = await both.asked(racing(scripted(*PREAMBLE), scripted(*PREAMBLE),policy=policy))
    print("XX",policy.name,asyncio.get_running_loop().time()-t,[(a.provider,a.outcome,a.launch_reason,a.ttft_secs) for a in line.reports[0].attempts], line.text,line.times(FunctionCallInProgressFrame))

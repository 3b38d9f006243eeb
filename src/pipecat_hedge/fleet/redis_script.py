"""The script that Redis runs for one exchange, see ``redis_store.py``.

It takes one key, the prefix in braces, and one argument, the exchange as JSON, and answers with
JSON. Under the prefix it keeps:

- ``:1:sum:<provider>``, a hash: the epoch ``e``, the generation's number ``g``, how many
  observations of the first token it counts ``n``, and the counts; ``:1:was:<provider>`` is the
  generation before;
- ``:1:providers``, the set of those;
- ``:1:pot:<account>``, a number; ``:1:batch:<process>``, a hash: the number of the last batch and
  what came of it;
- ``:process:<process>``, a document, and ``:processes``, the set of their names.

A key of another type, or with something else in it, is left as it is and told of.
"""

from __future__ import annotations

from hashlib import sha1

__all__ = ["SCRIPT", "SCRIPT_SHA"]

SCRIPT = """
local root = KEYS[1]
local asked = cjson.decode(ARGV[1])
local document_secs, sum_secs = asked.secs[1], asked.secs[2]
local pot_secs, batch_secs = asked.secs[3], asked.secs[4]
local unusable = {}

local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  if found == kind or found == 'none' then return true end
  unusable[#unusable + 1] = key
  return false
end

local function whole(text)
  local number = tonumber(text)
  if number and number >= 0 and number < 2^53 and number % 1 == 0 then return number end
  return nil
end

local function head(key)
  local found = redis.call('HMGET', key, 'e', 'g', 'n')
  local number, count = whole(found[2]), whole(found[3])
  if found[1] and number and count then return found[1], number, count end
  if redis.call('EXISTS', key) == 1 then unusable[#unusable + 1] = key end
  return nil
end

-- first a command that a Redis without memory refuses, so that it refuses all of them
redis.call('SET', root .. ':process:' .. asked.process, asked.document, 'EX', document_secs)

-- the batch, unless it has been added before
local mark = root .. ':1:batch:' .. asked.process
local providers = root .. ':1:providers'

local function add(provider, counts)
  local key, was = root .. ':1:sum:' .. provider, root .. ':1:was:' .. provider
  if not is(key, 'hash') then return '- 0' end
  local epoch, number, count = head(key)
  if not epoch then
    if redis.call('EXISTS', key) == 1 then return '- 0' end
    epoch, number, count = asked.process .. '.' .. asked.number, 0, 0
    redis.call('DEL', was)
    redis.call('HSET', key, 'e', epoch, 'g', 0, 'n', 0)
  elseif count >= asked.generation then
    number = number + 1
    redis.call('RENAME', key, was)
    redis.call('HSET', key, 'e', epoch, 'g', number, 'n', 0)
    redis.call('EXPIRE', was, sum_secs)
  end
  for field, more in pairs(counts) do
    redis.pcall('HINCRBY', key, field, more)
  end
  redis.call('EXPIRE', key, sum_secs)
  redis.call('EXPIRE', was, sum_secs)
  if is(providers, 'set') then
    redis.call('SADD', providers, provider)
    redis.call('EXPIRE', providers, sum_secs)
  end
  return epoch .. ' ' .. number
end

local function even_out(account, balance)
  local key = root .. ':1:pot:' .. account
  if not is(key, 'string') then return '0' end
  local found = redis.call('GET', key)
  local pot = tonumber(found or 0)
  if not pot or not (pot < 1000 and pot > -1000) then
    unusable[#unusable + 1] = key
    return '0'
  end
  local moved = string.format('%.9g', (balance - pot) / 2)
  redis.call('SET', key, string.format('%.9g', pot + tonumber(moved)), 'EX', pot_secs)
  return moved
end

if not is(mark, 'hash') then redis.call('DEL', mark) end
if asked.number > (whole(redis.call('HGET', mark, 'number')) or 0) then
  redis.call('DEL', mark)
  redis.call('HSET', mark, 'number', asked.number)
  for provider, counts in pairs(asked.counts) do
    redis.call('HSET', mark, 'c' .. provider, add(provider, counts))
  end
  for account, balance in pairs(asked.balances) do
    redis.call('HSET', mark, 'p' .. account, even_out(account, balance))
  end
end
redis.call('EXPIRE', mark, batch_secs)
local marked, flat = {}, redis.call('HGETALL', mark)
for i = 1, #flat, 2 do
  if flat[i] ~= 'number' then marked[flat[i]] = flat[i + 1] end
end

-- the processes
local documents, processes = {}, root .. ':processes'
if is(processes, 'set') then
  redis.call('SADD', processes, asked.process)
  redis.call('EXPIRE', processes, sum_secs)
  local names = redis.call('SRANDMEMBER', processes, asked.most[1])
  local keys = {}
  for i, name in ipairs(names) do keys[i] = root .. ':process:' .. name end
  for i, document in ipairs(redis.call('MGET', unpack(keys))) do
    if not document then
      redis.call('SREM', processes, names[i])
    elseif names[i] ~= asked.process then
      documents[names[i]] = document
    end
  end
end

-- the sums that are news
local sums, lost, bytes = {}, {}, 0

local function read(provider, epoch, number, count)
  if bytes > asked.most[2] then return end
  local key = root .. ':1:sum:' .. provider
  if not is(key, 'hash') then return end
  local e, g, n = head(key)
  if not e then
    if epoch ~= '' then lost[#lost + 1] = provider end
    if redis.call('EXISTS', key) == 0 then redis.call('SREM', providers, provider) end
    return
  end
  if e == epoch and g == number and n < count then return end
  local was = root .. ':1:was:' .. provider
  local present, before = table.concat(redis.call('HGETALL', key), ' '), ''
  if g > 0 and is(was, 'hash') and redis.call('HGET', was, 'e') == e then
    before = table.concat(redis.call('HGETALL', was), ' ')
  end
  sums[provider] = { e, g, n, present, before }
  bytes = bytes + #present + #before
end

if is(providers, 'set') then
  for _, provider in ipairs(asked.order) do
    local known = asked.wanted[provider]
    read(provider, known[1], known[2], known[3])
  end
  for _, provider in ipairs(redis.call('SMEMBERS', providers)) do
    if not asked.wanted[provider] then read(provider, '', 0, 0) end
  end
end

return cjson.encode({ mark = marked, documents = documents, sums = sums, lost = lost,
                      unusable = unusable })
"""

SCRIPT_SHA = sha1(SCRIPT.encode()).hexdigest()
"""The name under which Redis remembers it."""

-- Shared by every script. KEYS[1] is the deployment's prefix; key map: service/store/__init__.py.
-- A script's first write is one that Redis refuses when its memory is full (HSET, SET, ZADD …, not DEL or
-- ZREM): then all of it is refused, and nothing is half done.
local P = KEYS[1]
local QUEUE, LEASES, FINISHED, RETENTION = P .. 'queue', P .. 'leases', P .. 'finished', P .. 'retention'

-- From which seq on a kind of event is dropped: tool output first, then deltas (the whole message follows
-- them), at last everything but the state changes, of which three runs need fewer than the 20 kept for them.
local ROOM = {tool_output = math.floor(MAX_EVENTS * 0.8), text = math.floor(MAX_EVENTS * 0.9)}
local ROOM_ELSE = MAX_EVENTS - 20

local function task_key(id)
  return P .. 'task:' .. id
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%d', number)
end

-- Appends unconditionally; the only place that gives out a seq, so it has no gaps.
local function emit(id, kind, data, now)
  local task = task_key(id)
  local seq = redis.call('HINCRBY', task, 'seq', 1)
  redis.call('XADD', task .. ':events', whole(seq) .. '-0', 't', whole(now), 'k', kind, 'd', data)
  return seq
end

-- Appends unless the task has had its share of this kind; the first time that happens, a notice says so.
local function offer(id, kind, data, now)
  local task = task_key(id)
  local seq = tonumber(redis.call('HGET', task, 'seq'))
  if seq < (ROOM[kind] or ROOM_ELSE) then
    return emit(id, kind, data, now)
  end
  if redis.call('HINCRBY', task, 'dropped', 1) == 1 then
    return emit(id, 'notice', cjson.encode({
      code = 'events_dropped',
      text = 'This task has produced very many events; from here on ' .. kind .. ' events are dropped.',
    }), now)
  end
  return seq
end

-- Whether the run that holds this fencing number still owns the task.
local function holds(id, fence)
  local held = redis.call('HMGET', task_key(id), 'state', 'fence')
  return held[1] == 'running' and held[2] == fence
end

local function state_event(id, to, run, reason, problem, now)
  emit(id, 'state', '{"state":"' .. to .. '","run":' .. run
    .. ',"exit_reason":' .. (reason and '"' .. reason .. '"' or 'null')
    .. ',"error":' .. (problem or 'null') .. '}', now)
end

-- The only way a state changes: checks the table, keeps queue, leases and counters in step, tells it last.
-- `problem` is JSON or nil. Returns whether the table allows it.
local function move(id, to, reason, problem, now)
  local task = task_key(id)
  local from = redis.call('HGET', task, 'state')
  if not from or not TRANSITIONS[from][to] then
    return false
  end
  redis.call('HSET', task, 'state', to)
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', LEASES, id)
  redis.call('HDEL', task, 'phase', 'worker')
  if to == 'queued' then
    redis.call('ZADD', QUEUE, redis.call('HGET', task, 'rank'), id)
  elseif to == 'running' then
    redis.call('HINCRBY', task, 'run', 1)
    redis.call('HINCRBY', task, 'fence', 1)
    redis.call('HSETNX', task, 'started_ms', whole(now))
    redis.call('ZADD', LEASES, whole(now + LEASE_MS), id)
  elseif TERMINAL[to] then
    redis.call('HSET', task, 'exit_reason', reason, 'finished_ms', whole(now))
    if problem then
      redis.call('HSET', task, 'error', problem)
    end
    redis.call('DEL', task .. ':sealed')
    redis.call('HINCRBY', FINISHED, reason, 1)
    redis.call('ZADD', RETENTION, whole(now + RETENTION_MS), id)
  end
  state_event(id, to, redis.call('HGET', task, 'run'), reason, problem, now)
  return true
end

-- A run that ended without a result: the task starts over, unless it was to be cancelled or has had its runs.
local function start_over(id, now)
  local task = task_key(id)
  if redis.call('HGET', task, 'cancel') then
    move(id, 'cancelled', 'cancelled', nil, now)
    return 'cancelled'
  end
  if tonumber(redis.call('HGET', task, 'run')) >= MAX_RUNS then
    move(id, 'failed', 'worker_lost', cjson.encode({
      code = 'worker_lost',
      message = 'The worker was lost ' .. MAX_RUNS .. ' times; the task is not started again.',
      retryable = true,
    }), now)
    return 'failed'
  end
  move(id, 'queued', nil, nil, now)
  redis.call('HDEL', task, 'summary', 'todo')
  return 'queued'
end
